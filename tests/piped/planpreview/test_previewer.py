# SPDX-License-Identifier: Apache-2.0
"""Each request for a plan preview gets one result, whatever fails."""

import asyncio
import re
from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest

from pipecd.model.clock import utc_now
from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import UserMistake
from pipecd.piped.planning.deployment import commit_cause, new_deployment
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.planning.planner import Planner, last_success
from pipecd.proto.model.command_pb2 import Command
from pipecd.secrets.binding import Binding
from servers.origin import Origin
from servers.planpreview import OpenPreviews
from servers.polling import eventually

CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  plugins: {platform: {}}
  trigger: {onCommit: {paths: [shared/NAME.txt]}}
  pipeline: {stages: [{name: CANARY}, {name: WAIT, with: {duration: 1s}}]}
"""
SECRET = "correct-horse"


def application(name: str, tag: str = "v1", config: str = CONFIG) -> dict[str, str]:
    return {f"{name}/app.pipecd.yaml": config.replace("NAME", name), f"{name}/tag": tag}


async def test_a_preview_shows_the_changes_of_a_branch(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit({**application("cart"), **application("shop")})
    async with open_previews() as env, env.previewing():
        cart = await env.add_application("cart", deployed=first)
        await env.add_application("shop", deployed=first)
        head = env.push_branch({"cart/tag": "v2"})
        result = await env.preview(head)
    [shown] = result.results
    assert (shown.application_id, shown.application_name, shown.error) == (cart, "cart", "")
    assert (shown.head_branch, shown.head_commit) == ("feature", head)
    assert shown.sync_strategy == SyncStrategy.PIPELINE
    assert list(shown.plugin_names) == ["platform", "wait"]
    [plan] = shown.plugin_plan_results
    assert (plan.plugin_name, plan.deploy_target, plan.diff_language) == ("platform", "dev", "diff")
    assert (plan.plan_summary, plan.plan_details) == (b"1 tag changed", b"- v1\n+ v2\n")
    assert (shown.plan_summary, shown.plan_details) == (b"1 tag changed", b"- v1\n+ v2\n")
    assert not shown.no_change
    assert shown.application_url.endswith(f"/applications/{cart}")
    assert (result.piped_name, result.error) == ("dev", "")


async def test_the_preview_is_of_the_merge_and_not_of_the_branch(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit({**application("cart"), **application("shop")})
    async with open_previews() as env, env.previewing():
        await env.add_application("cart", deployed=first)
        await env.add_application("shop", deployed=first)
        head = env.push_branch({"shop/tag": "v9"})
        origin.commit({"cart/tag": "v2"}, "pushed to main in the meantime")
        result = await env.preview(head)
    shown = {each.application_name: each.plan_details for each in result.results}
    assert shown == {"cart": b"- v1\n+ v2\n", "shop": b"- v1\n+ v9\n"}


async def test_unchanged_applications_are_not_shown(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("cart"))
    async with open_previews() as env, env.previewing():
        await env.add_application("cart", deployed=first)
        assert not (await env.preview(env.push_branch({"README": "read me"}))).results
        by_path = env.push_branch({"shared/cart.txt": "as onCommit.paths has it"}, "other")
        [shown] = (await env.preview(by_path, "other")).results
    assert (shown.no_change, shown.plan_summary) == (True, b"No changes were detected")
    assert shown.plan_details == b"No changes were detected"


async def test_a_first_deployment_is_previewed_as_new(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    origin.commit({"README": ""})
    async with open_previews() as env, env.previewing():
        head = env.push_branch(application("cart"))
        await env.add_application("cart")
        [shown] = (await env.preview(head)).results
    assert shown.sync_strategy == SyncStrategy.QUICK_SYNC
    assert shown.plan_details == b"- \n+ v1\n"


async def test_the_text_for_older_clients_has_every_target(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("cart"))
    async with open_previews(targets=("east", "west")) as env, env.previewing():
        await env.add_application("cart", deployed=first)
        [shown] = (await env.preview(env.push_branch({"cart/tag": "v2"}))).results
    assert [each.deploy_target for each in shown.plugin_plan_results] == ["east", "west"]
    assert shown.plan_summary == b"platform(east): 1 tag changed\nplatform(west): 1 tag changed"
    east, west = b"platform(east):\n- v1\n+ v2\n", b"platform(west):\n- v1\n+ v2\n"
    assert shown.plan_details == east + b"\n" + west


async def test_an_application_without_plugins_that_preview_has_a_strategy(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    config = CONFIG.replace("{platform: {}}", "{}").replace("{name: CANARY}, ", "")
    first = origin.commit(application("cart", config=config))
    async with open_previews() as env, env.previewing():
        await env.add_application("cart", deployed=first)
        [shown] = (await env.preview(env.push_branch({"cart/tag": "v2"}))).results
    assert (list(shown.plugin_names), shown.error) == (["wait"], "")
    assert shown.sync_strategy == SyncStrategy.PIPELINE
    assert not shown.no_change, "no plugin reported it"


@pytest.mark.parametrize(
    ("more", "is_deployed", "strategy"),
    [
        pytest.param("", True, SyncStrategy.PIPELINE, id="the plugin chooses the pipeline"),
        pytest.param("", False, SyncStrategy.QUICK_SYNC, id="it is the first deployment"),
        pytest.param(
            "  planner: {alwaysUsePipeline: true}\n", False, SyncStrategy.PIPELINE, id="always"
        ),
    ],
)
async def test_a_deployment_of_the_merge_is_planned_as_it_was_previewed(
    open_previews: OpenPreviews,
    origin: Origin,
    tmp_path: Path,
    more: str,
    is_deployed: bool,
    strategy: SyncStrategy,
) -> None:
    first = origin.commit(application("cart", config=CONFIG + more))
    async with open_previews() as env, env.previewing() as previewer:
        id_ = await env.add_application("cart", deployed=first if is_deployed else "")
        [shown] = (await env.preview(env.push_branch({"cart/tag": "v2"}))).results
        origin.git("merge", "-q", "--no-ff", "-m", "merged", "feature")
        previews, builder = previewer.builder.previewer, previewer.builder
        mirror = builder.mirrors.of("site")
        head = await mirror.update()
        cached = builder.applications.get(id_)
        assert cached is not None
        config = await previews.sources.config(cached.git_path, head.hash)
        sources = DeploymentSources(previews.sources, previews.masks, "d", nullcontext())
        plan = await Planner(sources, previews.plugins, targets=previews.targets).plan(
            new_deployment(
                cached,
                config.spec,
                commit_cause("d", head.hash, "it changed"),
                commit=head,
                repository=mirror.repository,
                now=utc_now(),
            ),
            await last_success(previews.api, id_),
            tmp_path / "merged",
        )
    assert SyncStrategy(shown.sync_strategy) is plan.strategy is strategy


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param({"commit": "0" * 40}, "commit 0{40} is not in branch feature of", id="an unknown commit"),
        pytest.param({"commit": "0" * 40, "branch": "gone"}, "has no branch gone", id="an unknown branch"),
        pytest.param({"commit": "feature"}, "'feature' is not the hash of a commit", id="a branch instead of a commit"),
        pytest.param({"repository_id": "other"}, "^repository other was not found in Piped config$", id="an unknown repository"),
        pytest.param({"base_branch": "next"}, "^base branch of repository site was not matched, requested next, expected main$", id="another base branch"),
    ],
)  # fmt: skip
async def test_an_invalid_request_fails(
    open_previews: OpenPreviews, origin: Origin, changes: dict[str, str], error: str
) -> None:
    first = origin.commit(application("cart"))
    async with open_previews() as env, env.previewing():
        await env.add_application("cart", deployed=first)
        head = env.push_branch({"cart/tag": "v2"})
        build = Command.BuildPlanPreview(
            repository_id=changes.get("repository_id", "site"),
            base_branch=changes.get("base_branch", "main"),
            head_branch=changes.get("branch", "feature"),
            head_commit=changes.get("commit") or head,
        )
        command = await env.plane.cases.commands.add(
            Command(
                piped_id=env.plane.piped.id,
                project_id="shop",
                commander="pipectl",
                type=Command.BUILD_PLAN_PREVIEW,
                build_plan_preview=build,
            )
        )
        result = await env.result(command)
    assert not result.results
    assert re.search(error, result.error)


async def test_a_conflict_names_the_files(open_previews: OpenPreviews, origin: Origin) -> None:
    first = origin.commit(application("cart"))
    async with open_previews() as env, env.previewing():
        await env.add_application("cart", deployed=first)
        head = env.push_branch({"cart/tag": "v2"})
        origin.commit({"cart/tag": "v3"})
        result = await env.preview(head)
    assert result.error.startswith(
        f"detected conflicts between commit {head} at feature branch and the base branch main "
        "(cart/tag)"
    )


async def test_an_invalid_configuration_fails_only_its_application(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit({**application("cart"), **application("shop"), **application("old")})
    broken = {"old/app.pipecd.yaml": "kind: [broken"}
    async with open_previews() as env, env.previewing():
        for name in ("cart", "shop", "old"):
            await env.add_application(name, deployed=first)
        origin.commit(broken, "broken on main")
        head = env.push_branch({"cart/app.pipecd.yaml": "kind: Nonsense", "shop/tag": "v2"})
        result = await env.preview(head)
    shown = {each.application_name: each for each in result.results}
    assert shown.keys() == {"cart", "shop"}
    begin = "failed while determining the application should be triggered or not, cart/app"
    assert shown["cart"].error.startswith(begin)
    assert list(shown["cart"].plugin_names) == ["<unknown>"]
    assert (shown["shop"].error, shown["shop"].plan_summary) == ("", b"1 tag changed")


async def test_the_error_of_a_plugin_is_shown(open_previews: OpenPreviews, origin: Origin) -> None:
    first = origin.commit(application("cart"))
    async with open_previews() as env, env.previewing():
        env.platform.error = "no access"
        await env.add_application("cart", deployed=first)
        [shown] = (await env.preview(env.push_branch({"cart/tag": "v2"}))).results
    assert shown.error == "failed to get plan preview, \n[platform] no access at v2"
    assert shown.sync_strategy == SyncStrategy.PIPELINE


ENCRYPTED = (
    CONFIG
    + """\
  encryption: {encryptedSecrets: {password: encrypted}, decryptionTargets: [tag]}
"""
)
TEMPLATE = "{{ .encryptedSecrets.password }}"


async def test_no_secret_is_shown(open_previews: OpenPreviews, origin: Origin) -> None:
    first = origin.commit(application("cart", TEMPLATE, ENCRYPTED))
    async with open_previews(decrypt=lambda _text, _binding: SECRET) as env, env.previewing():
        await env.add_application("cart", deployed=first)
        head = env.push_branch({"cart/tag": f"{TEMPLATE}-2"})
        result = await env.preview(head)
        assert env.masks.all.hide(SECRET) == "******", "no log shows it either"
        env.platform.error = "cannot log in"
        again = await env.preview(head)
        stored = [f for f in env.plane.directory.rglob("*") if f.is_file()]
        leaks = [f for f in stored if SECRET.encode() in f.read_bytes()]
    [shown], [failed] = result.results, again.results
    assert shown.plugin_plan_results[0].plan_details == b"- ******\n+ ******-2\n"
    assert shown.plan_details == b"- ******\n+ ******-2\n"
    assert failed.error.endswith("cannot log in at ******-2")
    assert leaks == []


async def test_a_secret_that_cannot_be_decrypted_fails_its_application(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    def refuse(_text: str, _binding: Binding) -> str:
        raise UserMistake("it was encrypted with another key")

    first = origin.commit({**application("cart"), **application("shop")})
    async with open_previews(decrypt=refuse) as env, env.previewing():
        await env.add_application("cart", deployed=first)
        await env.add_application("shop", deployed=first)
        head = env.push_branch({**application("cart", TEMPLATE, ENCRYPTED), "shop/tag": "v2"})
        result = await env.preview(head)
    shown = {each.application_name: each.error for each in result.results}
    assert shown["cart"].startswith("failed while planning, failed to decrypt password secret")
    assert shown["shop"] == ""


async def test_a_timeout_is_shown_for_each_late_application(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("cart"))
    async with open_previews(default_timeout=2) as env, env.previewing():
        env.platform.release = asyncio.Event()
        await env.add_application("cart", deployed=first)
        command = await env.request(env.push_branch({"cart/tag": "v2"}))
        [shown] = (await env.result(command)).results
        assert shown.error == "there was no preview within 2s"
        assert list(shown.plugin_names) == ["platform", "wait"]
        assert env.platform.concurrent == 0, "the call of the plugin was cancelled"


async def test_a_request_may_set_its_timeout(open_previews: OpenPreviews, origin: Origin) -> None:
    first = origin.commit(application("cart"))
    async with open_previews() as env, env.previewing():
        env.platform.release = asyncio.Event()
        await env.add_application("cart", deployed=first)
        command = await env.request(env.push_branch({"cart/tag": "v2"}), timeout=3)
        [shown] = (await env.result(command)).results
    assert shown.error == "there was no preview within 3s"


async def test_the_number_of_workers_limits_concurrent_previews(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("cart"))
    async with open_previews(workers=2) as env:
        env.platform.release = asyncio.Event()
        await env.add_application("cart", deployed=first)
        heads = {f"b{n}": env.push_branch({"cart/tag": f"v2.{n}"}, f"b{n}") for n in range(10)}
        commands = [await env.request(commit, name) for name, commit in heads.items()]
        async with env.previewing():
            await eventually(lambda: env.platform.concurrent == 2)
            env.platform.release.set()
            results = [await env.result(command) for command in commands]
    assert env.platform.max_concurrent == 2
    shown = [each.plan_details.decode() for result in results for each in result.results]
    assert shown == [f"- v1\n+ v2.{n}\n" for n in range(10)]
    assert len(env.platform.previewed) == 10
    count = env.registry.get_sample_value
    assert count("plan_preview_command_received_total") == 10
    assert count("plan_preview_command_handled_total", {"status": "success"}) == 10
    assert count("plan_preview_command_handling_seconds_count", {"status": "success"}) == 10


async def test_an_unfinished_preview_is_built_after_a_restart(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("cart"))
    async with open_previews() as env:
        env.platform.release = asyncio.Event()
        await env.add_application("cart", deployed=first)
        command = await env.request(env.push_branch({"cart/tag": "v2"}))
        async with env.previewing():
            await eventually(lambda: env.platform.concurrent == 1)
        assert env.platform.concurrent == 0, "a stopped piped cancels previews"
        (env.workspace / "plan-previews" / "old" / "cart").mkdir(parents=True)
        env.platform.release.set()
        async with env.previewing():
            result = await env.result(command)
        assert not list((env.workspace / "plan-previews").glob("*/*"))
    assert [each.plan_summary for each in result.results] == [b"1 tag changed"]
    assert env.plane.gate.count("ReportCommandHandled") == 1


async def test_an_expired_request_is_rejected(open_previews: OpenPreviews, origin: Origin) -> None:
    first = origin.commit(application("cart"))
    async with open_previews(default_timeout=-100) as env, env.previewing():
        await env.add_application("cart", deployed=first)
        result = await env.preview(env.push_branch({"cart/tag": "v2"}))
    assert "was requested" in result.error
    assert result.error.endswith("; request it again")


async def test_a_preview_waits_for_an_unavailable_control_plane(
    open_previews: OpenPreviews, origin: Origin
) -> None:
    first = origin.commit(application("cart"))
    call = "GetApplicationMostRecentDeployment"
    async with open_previews() as env, env.previewing():
        await env.add_application("cart", deployed=first)
        gate = env.plane.gate
        gate.refusals[call] = grpc.StatusCode.UNAVAILABLE
        preview = asyncio.create_task(env.preview(env.push_branch({"cart/tag": "v2"})))
        # More attempts than one call has.
        while gate.count(call) < 5:
            assert not preview.done(), preview.result()
            await asyncio.sleep(0.01)
        del gate.refusals[call]
        result = await preview
    assert [each.error for each in result.results] == [""]


async def test_a_lost_report_is_repeated(open_previews: OpenPreviews, origin: Origin) -> None:
    first = origin.commit(application("cart"))
    async with open_previews() as env:
        env.plane.gate.lost_answers.add("ReportCommandHandled")
        async with env.previewing():
            await env.add_application("cart", deployed=first)
            result = await env.preview(env.push_branch({"cart/tag": "v2"}))
        assert [each.error for each in result.results] == [""]
        assert len(env.platform.previewed) == 1
