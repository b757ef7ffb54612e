# SPDX-License-Identifier: Apache-2.0
"""Events become commits in one push, and each has a status that says what happened."""

from pathlib import Path
from typing import Any

import pytest

from pipecd.config.piped import EventWatcherRepoSpec
from pipecd.proto.model import event_pb2
from servers.control_plane import OpenControlPlane
from servers.eventwatcher import EventClient, watching_events
from servers.origin import Origin


def event_watcher_file(*events: str) -> str:
    """A file of `.pipe/` that changes `tag` in the file of its event's name."""
    lines = "".join(
        f"    - name: {name}\n      replacements: [{{file: {name}.yaml, yamlField: $.tag}}]\n"
        for name in events
    )
    return f"apiVersion: pipecd.dev/v1beta1\nkind: EventWatcher\nspec:\n  events:\n{lines}"


def application(event: str, *replacements: str, more: str = "") -> str:
    """An application file with an event watcher."""
    listed = "".join(f"          - {replacement}\n" for replacement in replacements)
    return f"""\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  eventWatcher:
    - matcher:
        name: {event}
        labels: {{app: cart}}
      handler:
        type: GIT_UPDATE
        config:
{more}          replacements:
{listed}"""


MANIFEST = "# The cart.\nimage:  'cart:v1'   # keep\ntag: v1\n"


async def test_an_event_of_an_application_becomes_a_commit(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    template = "          commitMessage: 'feat: {{ .EventName }} {{ .Value }}'\n"
    both = ("{file: m.yaml, yamlField: $.tag}", "{file: ../cfg.json, jsonField: $.tag}")
    shop.commit(
        {
            "cart/app.pipecd.yaml": application("image", *both, more=template),
            "cart/m.yaml": MANIFEST,
            "cfg.json": '{"tag":"v1"}',
        }
    )
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        await plane.piped.add_repository("site", shop.remote)
        await plane.piped.add_application("cart")
        id_ = await events.register(
            "image",
            "v2",
            labels={"app": "cart"},
            contexts={"Build": "77"},
            commit_hash="abc123",
        )
        description = await events.succeeded(id_)
    assert description == 'Successfully updated 2 files in the "site" repository'
    assert (shop.path / "cart/m.yaml").read_text() == MANIFEST.replace("tag: v1", "tag: v2")
    assert (shop.path / "cfg.json").read_text() == '{"tag":"v2"}'
    assert shop.git("log", "-1", "--format=%an|%B") == (
        "piped|feat: image v2\n\nBuild: 77\nPipecd-Dev-Trace-Trigger-Commit-Hash: abc123"
    )


async def test_pending_events_become_one_commit_and_older_ones_are_outdated(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    files = {f"{name}.yaml": "tag: v0\n" for name in ("a", "b", "c")}
    shop.commit({".pipe/deep/all.yaml": event_watcher_file("a", "b", "c"), **files})
    before = shop.git("rev-parse", "HEAD")
    async with open_plane() as plane:
        events = EventClient(plane)
        old = [await events.register("a", f"v{n}") for n in range(5)]
        new = [await events.register(name, "v9") for name in ("a", "b")]
        unwatched = await events.register("unwatched", "v1")
        async with watching_events(plane, {"site": shop.remote}):
            for id_ in new:
                await events.succeeded(id_)
            outdated = [await events.handled(id_) for id_ in old]
            unhandled = (await events.all())[unwatched]
    assert {e.status for e in outdated} == {event_pb2.EVENT_OUTDATED}
    assert {e.status_description for e in outdated} == {
        f'The new event "{new[0]}" has been created'
    }
    assert unhandled.status == event_pb2.EVENT_NOT_HANDLED
    assert shop.git("rev-parse", "HEAD^") == before
    assert shop.git("log", "-1", "--format=%B") == (
        'Replace values with "v9" set by Event "a"\n\nReplace values with "v9" set by Event "b"'
    )
    assert [(shop.path / f"{n}.yaml").read_text() for n in "abc"] == [
        "tag: v9\n",
        "tag: v9\n",
        "tag: v0\n",
    ]


async def test_a_failed_event_has_a_reason_and_changes_no_file(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    half = "{file: m.yaml, yamlField: $.tag}", "{file: none.yaml, yamlField: $.tag}"
    shop.commit(
        {
            "cart/app.pipecd.yaml": application("half", *half),
            "cart/m.yaml": MANIFEST,
            ".pipe/good.yaml": event_watcher_file("good", "list", "gone", "link"),
            ".pipe/bad.yaml": "kind: [",
            ".pipe/other.yaml": "apiVersion: pipecd.dev/v1beta1\nkind: AnalysisTemplate\nspec: {}",
            "good.yaml": "tag: v1\n",
            "list.yaml": "tag: [v1]\n",
        }
    )
    (shop.path / "link.yaml").symlink_to("good.yaml")
    before = shop.commit()
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        await plane.piped.add_repository("site", shop.remote)
        await plane.piped.add_application("cart")
        ids = [await events.register(name, "v2") for name in ("list", "gone", "link", "good")]
        half_id = await events.register("half", "v2", labels={"app": "cart"})
        descriptions = [await events.failed(id_) for id_ in (*ids[:3], half_id)]
        await events.succeeded(ids[3])
    assert descriptions == [
        "Failed to change files: list.yaml: $.tag is a list; name one of its items, such as [0]",
        "Failed to change files: gone.yaml was not found",
        "Failed to change files: link.yaml is reached by a symbolic link; "
        "name the file it leads to",
        "Failed to change files: cart/none.yaml was not found",
    ]
    assert shop.git("diff", "--name-only", before, "HEAD") == "good.yaml"


async def test_an_unchanged_value_needs_no_commit(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    head = shop.commit({".pipe/a.yaml": event_watcher_file("a"), "a.yaml": "tag: v2\n"})
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        assert await events.succeeded(await events.register("a", "v2")) == "Nothing to commit"
    assert shop.git("rev-parse", "HEAD") == head


async def test_a_concurrent_push_is_not_overwritten(
    open_plane: OpenControlPlane, shop: Origin, tmp_path: Path
) -> None:
    shop.commit({".pipe/a.yaml": event_watcher_file("a"), "a.yaml": "tag: v1\nother: 1\n"})
    faster = shop.commit({"a.yaml": "tag: v1\nother: 2\n"}, "faster")
    bare = tmp_path / "bare.git"
    shop.git("clone", "-q", "--bare", ".", str(bare))
    shop.git("--git-dir", str(bare), "update-ref", "refs/heads/main", f"{faster}^")
    # Another push arrives before the first push of piped.
    hook = bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        "#!/bin/sh\n[ -e was-here ] && exit 0\ntouch was-here\n"
        f"unset GIT_QUARANTINE_PATH\ngit update-ref refs/heads/main {faster}\n"
    )
    hook.chmod(0o755)
    async with open_plane() as plane, watching_events(plane, {"site": f"file://{bare}"}):
        events = EventClient(plane)
        await events.succeeded(await events.register("a", "v2"))
    assert (bare / "was-here").exists()
    assert shop.git("--git-dir", str(bare), "rev-parse", "main^") == faster
    assert shop.git("--git-dir", str(bare), "show", "main:a.yaml") == "tag: v2\nother: 2"


async def test_a_rejected_push_fails_its_event_and_the_next_event_is_handled(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    shop.commit({".pipe/a.yaml": event_watcher_file("a"), "a.yaml": "tag: v1\n"})
    hook = shop.path / ".git/hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        description = await events.failed(await events.register("a", "v2"))
        assert description.startswith("Failed to push changed files: repository 'site'")
        hook.unlink()
        await events.succeeded(await events.register("a", "v3"))
    assert (shop.path / "a.yaml").read_text() == "tag: v3\n"


async def test_an_event_whose_change_another_event_failed_to_push_fails_too(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    both = event_watcher_file("a") + event_watcher_file("b").partition("events:\n")[2].replace(
        "b.yaml", "a.yaml"
    )
    shop.commit({".pipe/both.yaml": both, "a.yaml": "tag: v1\n"})
    hook = shop.path / ".git/hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    async with open_plane() as plane:
        events = EventClient(plane)
        ids = [await events.register(name, "v2") for name in ("a", "b")]
        async with watching_events(plane, {"site": shop.remote}):
            for id_ in ids:
                assert (await events.failed(id_)).startswith("Failed to push changed files")


async def test_branches_of_pull_requests_start_at_the_watched_branch(
    open_plane: OpenControlPlane, shop: Origin
) -> None:
    setting = "          makePullRequest: true\n"
    shop.commit(
        {
            "cart/app.pipecd.yaml": application(
                "new image", "{file: m.yaml, yamlField: $.tag}", more=setting
            ),
            "cart/m.yaml": MANIFEST,
        }
    )
    head = shop.git("rev-parse", "main")
    async with open_plane() as plane, watching_events(plane, {"site": shop.remote}):
        events = EventClient(plane)
        await plane.piped.add_repository("site", shop.remote)
        await plane.piped.add_application("cart")
        ids: list[str] = []
        for value in ("v2", "v3"):
            ids.append(await events.register("new image", value, labels={"app": "cart"}))
            description = await events.succeeded(ids[-1])
            assert description.endswith(f'"site" repository, branch new-image-{ids[-1]}')
    assert shop.git("rev-parse", "main") == head
    for id_, value in zip(ids, ("v2", "v3"), strict=True):
        branch = f"new-image-{id_}"
        assert shop.git("rev-parse", f"{branch}^") == head
        assert f"tag: {value}" in shop.git("show", f"{branch}:cart/m.yaml")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param({}, {"a", "b"}, id="all files are read"),
        pytest.param({"includes": ("a.yaml",)}, {"a"}, id="only included files"),
        pytest.param(
            {"excludes": ("a.*",), "includes": ("a.yaml",)}, {"b"}, id="excludes take precedence"
        ),
        pytest.param({"includes": ("[",)}, set[str](), id="an invalid pattern includes nothing"),
    ],
)
async def test_includes_and_excludes_select_files(
    open_plane: OpenControlPlane,
    shop: Origin,
    settings: dict[str, Any],
    names: set[str],
) -> None:
    files = {f"{name}.yaml": "tag: v1\n" for name in "abc"}
    shop.commit(
        {".pipe/a.yaml": event_watcher_file("a"), ".pipe/b.yaml": event_watcher_file("b"), **files}
    )
    shop.commit({"cart/app.pipecd.yaml": application("c", "{file: ../c.yaml, yamlField: $.tag}")})
    spec = EventWatcherRepoSpec(repo_id="site", commit_message="to {{.Value}}", **settings)
    async with (
        open_plane() as plane,
        watching_events(plane, {"site": shop.remote}, settings=spec),
    ):
        events = EventClient(plane)
        await plane.piped.add_repository("site", shop.remote)
        await plane.piped.add_application("cart")
        ids = {name: await events.register(name, "v2") for name in "ab"}
        last = await events.register("c", "v2", labels={"app": "cart"})
        for name in names:
            await events.succeeded(ids[name])
        await events.succeeded(last)
        listed = await events.all()
    assert {name for name, id_ in ids.items() if listed[id_].status} == names
    if names:
        assert "to v2" in shop.git("log", "--format=%s")
