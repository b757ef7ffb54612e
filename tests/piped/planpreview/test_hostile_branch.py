# SPDX-License-Identifier: Apache-2.0
"""A branch with a bomb fails the preview of its application, and no other."""

from collections.abc import Callable

import pytest

from servers.git_trees import blob, graft, nested, tree
from servers.origin import Origin
from servers.planpreview import OpenPreviews

CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  plugins: {platform: {}}
  pipeline: {stages: [{name: CANARY}]}
"""
FILES = "more than 1,000,000 files and directories"
LAUGHS = "x0: &x0 [1]\n" + "".join(f"x{n}: &x{n} [{f'*x{n - 1},' * 9}]\n" for n in range(1, 12))
RENDERED = "  attachment: {sources: {a: tag}, targets: [tag]}\n"


def application(name: str, tag: str = "v1", config: str = CONFIG) -> dict[str, str]:
    return {f"{name}/app.pipecd.yaml": config.replace("NAME", name), f"{name}/tag": tag}


def tree_bomb(directory: str, *, width: int = 10, levels: int = 9) -> Callable[[Origin], None]:
    def push(origin: Origin) -> None:
        below = nested(origin, width=width, levels=levels, leaf=blob(origin, b"x"))
        graft(origin, directory, {"bomb": below})

    return push


def files(changes: dict[str, str]) -> Callable[[Origin], None]:
    def push(origin: Origin) -> None:
        origin.commit(changes)

    return push


BOMBS: dict[str, tuple[Callable[[Origin], None], str]] = {
    "a Git tree": (tree_bomb("cart"), FILES),
    "a Git tree that is too deep": (tree_bomb("cart", width=1, levels=900), "nested more than 200"),
    "YAML aliases": (files({"cart/app.pipecd.yaml": CONFIG + LAUGHS}), "cart/app.pipecd.yaml"),
    "a template": (
        files(application("cart", "{{ range until 90000000 }}{{ range until 90000000 }}{{ end }}{{ end }}", CONFIG + RENDERED)),
        "failed while planning",
    ),
}  # fmt: skip


def push_feature(origin: Origin, *pushes: Callable[[Origin], None]) -> str:
    """Pushes a branch that changes the shop, and does what else is given."""
    origin.git("checkout", "-q", "-b", "feature")
    origin.commit({"shop/tag": "v2"})
    for push in pushes:
        push(origin)
    head = origin.git("rev-parse", "HEAD").strip()
    origin.git("symbolic-ref", "HEAD", "refs/heads/main")
    origin.git("reset", "-q", "--hard")
    return head


@pytest.mark.slow
@pytest.mark.parametrize(("push", "error"), BOMBS.values(), ids=BOMBS)
async def test_a_bomb_fails_its_application_only(
    open_previews: OpenPreviews, origin: Origin, push: Callable[[Origin], None], error: str
) -> None:
    first = origin.commit({**application("cart"), **application("shop")})
    async with open_previews() as env, env.previewing():
        for name in ("cart", "shop"):
            await env.add_application(name, deployed=first)
        result = await env.preview(push_feature(origin, push))
    assert result.error == ""
    shown = {each.application_name: each for each in result.results}
    assert error in shown["cart"].error
    assert (shown["shop"].error, shown["shop"].plan_details) == ("", b"- v1\n+ v2\n")


async def test_every_application_around_a_git_tree_bomb_fails(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    inner = application("cart/api")
    first = origin.commit({**application("cart"), **inner, **application("shop")})

    def push(origin: Origin) -> None:
        below = nested(origin, width=10, levels=9, leaf=blob(origin, b"x"))
        graft(origin, "cart", {"api": tree(origin, {"bomb": below})})

    async with open_previews() as env, env.previewing():
        for name in ("cart", "cart/api", "shop"):
            await env.add_application(name, deployed=first)
        result = await env.preview(push_feature(origin, push))
    failed = {each.application_name: FILES in each.error for each in result.results}
    assert (result.error, failed) == ("", {"cart": True, "cart/api": True, "shop": False})


async def test_a_git_tree_bomb_outside_of_applications_is_the_error_of_the_repository(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("shop"))
    async with open_previews() as env, env.previewing():
        await env.add_application("shop", deployed=first)
        head = push_feature(origin, tree_bomb("vendor"))
        result = await env.preview(head)
    assert not result.results
    assert f"vendor of commit {head[:7]} of repository 'site'" in result.error
    assert FILES in result.error


async def test_a_git_tree_bomb_in_the_history_of_both_branches_is_not_merged(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("shop"))
    tree_bomb("cart")(origin)
    bomb = origin.git("rev-parse", "HEAD").strip()
    removed = origin.git("rev-parse", f"{first}^{{tree}}").strip()
    for name, tag in (("main", "main"), ("feature", "feature")):
        commit = origin.git("commit-tree", removed, "-p", bomb, "-m", tag).strip()
        origin.git("update-ref", f"refs/heads/{name}", commit)
    head = origin.git("rev-parse", "feature").strip()
    async with open_previews() as env, env.previewing():
        await env.add_application("shop", deployed=first)
        result = await env.preview(head)
    assert f"commit {bomb[:7]} of repository 'site'" in result.error
    assert FILES in result.error


async def test_a_directory_that_is_left_out_changes_nothing_for_others(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    """What they see of it is as on the base branch."""
    watching = CONFIG + "  trigger: {onCommit: {paths: ['cart/**']}}\n"
    first = origin.commit({**application("cart"), **application("shop", config=watching)})
    async with open_previews() as env, env.previewing():
        for name in ("cart", "shop"):
            await env.add_application(name, deployed=first)
        origin.git("checkout", "-q", "-b", "feature")
        tree_bomb("cart")(origin)
        head = origin.git("rev-parse", "HEAD").strip()
        origin.git("symbolic-ref", "HEAD", "refs/heads/main")
        origin.git("reset", "-q", "--hard")
        result = await env.preview(head)
    assert [each.application_name for each in result.results] == ["cart"]
