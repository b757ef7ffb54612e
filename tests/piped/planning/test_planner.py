# SPDX-License-Identifier: Apache-2.0
"""Plans are made from real sources and the answers of real plugins."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.planning.planner import Plan, Planner, RunningCommit
from pipecd.piped.pluginhost.local import LocalPlugin
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.registry import PluginRegistry, RegisteredPlugin
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Sources
from pipecd.plugins.wait.plugin import WaitPlugin
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import (
    Commit,
    Deployment,
    DeploymentTrigger,
    DeployTargets,
)
from pipecd.sdk import (
    DeploymentPlugin,
    DeployTarget,
    PlanContext,
    PlannedStage,
    PluginEntry,
    Stage,
    StageContext,
    StagePlugin,
    StageResult,
    Strategy,
    Version,
)
from pipecd.sdk import (
    PipecdError as PluginError,
)
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.testing import MemoryHost
from servers.origin import Origin
from servers.samples import CART

QUICK, PIPELINE = SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE


@dataclass
class Platform(DeploymentPlugin):
    """A platform that compares two files and records its calls."""

    wants: Strategy | Exception | None = None
    broken: set[str] = field(default_factory=set[str])
    calls: list[str] = field(default_factory=list[str])

    stages = (Stage("CANARY"), Stage("PRIMARY"), Stage("SYNC"), Stage("SYNC_ROLLBACK"))

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        self._ask("versions")
        tag = (plan.target.application_directory / "tag").read_text()
        before = "" if plan.running is None else plan.running.config_filename
        return [Version(tag, before)]

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        self._ask("strategy")
        if isinstance(self.wants, Exception):
            raise self.wants
        return self.wants

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        self._ask("quick sync")
        undo = [PlannedStage("SYNC_ROLLBACK", is_rollback=True)] if rollback else []
        return [PlannedStage("SYNC"), *undo]

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()

    def _ask(self, what: str) -> None:
        self.calls.append(what)
        if what in self.broken:
            raise PluginError(f"{what} is broken")


class OtherPlatform(Platform):
    """Another platform with a stage of its own."""

    stages = (Stage("OTHER"),)


def hosted(plugin: StagePlugin, name: str, *targets: str) -> RegisteredPlugin:
    entry = PluginEntry(name, {}, tuple(DeployTarget(t, {}, {}) for t in targets))
    server = PluginServer(plugin, entry, MemoryHost())
    return RegisteredPlugin(LocalPlugin(server), frozenset(s.name for s in plugin.stages))


@asynccontextmanager
async def planning(
    origin: Origin, tmp_path: Path, *platforms: Platform, names: Sequence[str] = ("p0", "p1")
) -> AsyncGenerator[Callable[..., Any], None]:
    known = [
        hosted(platform, name, "dev") for name, platform in zip(names, platforms, strict=False)
    ]
    registry = PluginRegistry([*known, hosted(WaitPlugin(), "wait")])
    repository = Repository("site", origin.remote, "main")
    async with (
        open_mirrors(
            [repository], directory=tmp_path / "mirrors", credentials=GitCredentials()
        ) as mirrors,
        WorkerPool() as workers,
    ):
        targets = dict.fromkeys(names, ("dev",))
        sources = Sources(
            mirrors,
            ApplicationConfigs(load_catalog()),
            project="shop",
            renderer=TemplateRenderer(workers),
        )
        masked = DeploymentSources(sources, SecretMasks(), "d", nullcontext())
        planner = Planner(masked, registry, targets=targets)

        async def plan(
            commit: str,
            running: RunningCommit | None = None,
            aim: Any = None,
            platform_provider: str = "",
            **trigger: Any,
        ) -> Plan:
            everywhere = {name: DeployTargets(deploy_targets=["dev"]) for name in names}
            deployment = Deployment(
                id="d",
                application_id="a",
                application_name="cart",
                git_path=ApplicationGitPath(
                    repo=ApplicationGitRepository(id="site"),
                    path="cart",
                    config_filename="app.pipecd.yaml",
                ),
                deploy_targets_by_plugin=everywhere if aim is None else aim,
                platform_provider=platform_provider,
                trigger=DeploymentTrigger(commit=Commit(hash=commit, message="m"), **trigger),
            )
            return await planner.plan(deployment, running, tmp_path / "work")

        yield plan


def spec(*stages: str, more: str = "") -> dict[str, str]:
    lines = "".join(f"      - {stage}\n" for stage in stages)
    pipeline = f"  pipeline:\n    stages:\n{lines}" if stages else ""
    text = f"{CART}{more}{pipeline}"
    return {"cart/app.pipecd.yaml": text, "cart/tag": "v1"}


CANARY = ("name: CANARY", "{name: WAIT, with: {duration: 1s}}", "name: PRIMARY")
PLUGINS = "  plugins: {p0: {}}\n"


async def test_the_first_deployment_of_a_platform_is_a_quick_sync(
    origin: Origin, tmp_path: Path
) -> None:
    platform = Platform()
    commit = origin.commit(spec(*CANARY))
    async with planning(origin, tmp_path, platform) as plan:
        made = await plan(commit)
    assert (made.strategy, [s.name for s in made.stages]) == (QUICK, ["SYNC", "SYNC_ROLLBACK"])
    assert [v.version for v in made.versions] == ["v1"]
    assert "strategy" not in platform.calls, "plugins are not called if a rule decides"


async def test_plugins_decide_the_strategy_of_a_later_deployment(
    origin: Origin, tmp_path: Path
) -> None:
    platform = Platform(wants=Strategy(PIPELINE, "a new image"))
    first = origin.commit({**spec(*CANARY), "cart/old.yaml": spec(*CANARY)["cart/app.pipecd.yaml"]})
    second = origin.commit({"cart/tag": "v2"})
    async with planning(origin, tmp_path, platform) as plan:
        made = await plan(second, RunningCommit(first, "old.yaml"))
    assert (made.strategy, made.summary) == (PIPELINE, "a new image")
    assert [(s.name, s.index) for s in made.stages] == [("CANARY", 0), ("WAIT", 1), ("PRIMARY", 2)]
    assert [v.version for v in made.versions] == ["v2"]
    assert made.versions[0].name == "old.yaml", "the running source has its own config file"


async def test_no_plugin_is_called_after_one_that_requires_the_pipeline(
    origin: Origin, tmp_path: Path
) -> None:
    eager, late = Platform(wants=Strategy(PIPELINE, "yes")), OtherPlatform()
    commit = origin.commit(spec("name: CANARY", "name: OTHER"))
    async with planning(origin, tmp_path, eager, late) as plan:
        made = await plan(commit, RunningCommit(commit, "app.pipecd.yaml"))
    assert [s.name for s in made.stages] == ["CANARY", "OTHER"]
    assert made.strategy is PIPELINE
    assert "strategy" not in late.calls


async def test_without_a_pipeline_the_named_plugins_are_synced(
    origin: Origin, tmp_path: Path
) -> None:
    commit = origin.commit(spec(more=f"{PLUGINS}  planner: {{autoRollback: false}}\n"))
    async with planning(origin, tmp_path, Platform()) as plan:
        made = await plan(commit, RunningCommit(commit, ""))
    assert [s.name for s in made.stages] == ["SYNC"]


async def test_a_failure_to_determine_versions_does_not_fail_the_plan(
    origin: Origin, tmp_path: Path
) -> None:
    commit = origin.commit(spec(more=PLUGINS))
    async with planning(origin, tmp_path, Platform(broken={"versions"})) as plan:
        made = await plan(commit)
    assert [v.version for v in made.versions] == ["unknown"]


@pytest.mark.parametrize(
    ("platform", "error"),
    [
        pytest.param(Platform(broken={"quick sync"}), "quick sync is broken", id="no quick sync"),
        pytest.param(Platform(wants=ZeroDivisionError("oops")), "p0: plugin p0 failed: ZeroDivisionError: oops", id="no strategy"),
    ],
)  # fmt: skip
async def test_a_failed_plan_has_the_error_of_the_plugin(
    origin: Origin, tmp_path: Path, platform: Platform, error: str
) -> None:
    commit = origin.commit(spec("name: CANARY"))
    running = RunningCommit(commit, "") if platform.wants else None
    async with planning(origin, tmp_path, platform) as plan:
        with pytest.raises(PipecdError, match=error):
            await plan(commit, running)


async def test_the_error_names_a_missing_running_commit(origin: Origin, tmp_path: Path) -> None:
    commit = origin.commit(spec(more=PLUGINS))
    async with planning(origin, tmp_path, Platform()) as plan:
        with pytest.raises(NotFound, match="commit 00000"):
            await plan(commit, RunningCommit("0" * 40, ""))


async def test_a_user_forces_a_quick_sync(origin: Origin, tmp_path: Path) -> None:
    commit = origin.commit(spec(*CANARY))
    async with planning(origin, tmp_path, Platform()) as plan:
        made = await plan(
            commit, RunningCommit(commit, ""), sync_strategy=int(QUICK), strategy_summary="by ann"
        )
    assert (made.strategy, made.summary) == (QUICK, "by ann")


async def test_a_v0_application_is_deployed_to_its_platform_provider(
    origin: Origin, tmp_path: Path
) -> None:
    text = "apiVersion: pipecd.dev/v1beta1\nkind: KubernetesApp\nspec:\n  name: cart\n"
    commit = origin.commit({"cart/app.pipecd.yaml": text, "cart/tag": "v1"})
    platform = Platform()
    async with planning(origin, tmp_path, platform, names=["kubernetes"]) as plan:
        made = await plan(commit, aim={}, platform_provider="dev")
        assert made.strategy is SyncStrategy.QUICK_SYNC
        with pytest.raises(UserMistake, match="platform provider moon is not defined"):
            await plan(commit, aim={}, platform_provider="moon")


@pytest.mark.parametrize(
    ("planner", "summary"),
    [
        ("{}", "Sync with the specified progressive pipeline"),
        (
            "{alwaysUsePipeline: true}",
            "Sync with the specified pipeline (alwaysUsePipeline was set)",
        ),
    ],
)
async def test_a_v0_application_of_terraform_uses_its_pipeline_for_the_first_time(
    origin: Origin, tmp_path: Path, planner: str, summary: str
) -> None:
    text = (
        "apiVersion: pipecd.dev/v1beta1\nkind: TerraformApp\nspec:\n  name: cart\n"
        f"  planner: {planner}\n  pipeline: {{stages: [{{name: TERRAFORM_PLAN}}]}}\n"
    )
    commit = origin.commit({"cart/app.pipecd.yaml": text, "cart/tag": "v1"})
    platform = Platform()
    platform.stages = (Stage("TERRAFORM_PLAN"), *Platform.stages)
    async with planning(origin, tmp_path, platform, names=["terraform"]) as plan:
        made = await plan(commit, aim={}, platform_provider="dev")
    assert (made.strategy, made.summary) == (SyncStrategy.PIPELINE, summary)


async def test_of_two_plugins_for_one_platform_the_application_chooses(
    origin: Origin, tmp_path: Path
) -> None:
    first, second = Platform(), Platform()
    running = RunningCommit(origin.commit(spec(*CANARY)), "app.pipecd.yaml")
    async with planning(origin, tmp_path, first, second) as plan:
        commit = origin.commit(spec(*CANARY))
        with pytest.raises(UserMistake, match="several plugins offer the stage CANARY: p0, p1"):
            await plan(commit, running)
        await plan(origin.commit(spec(*CANARY, more=PLUGINS)), running)
        assert (bool(first.calls), bool(second.calls)) == (True, False), "named under plugins"
        first.calls.clear()
        await plan(commit, running, aim={"p1": DeployTargets(deploy_targets=["dev"])})
        assert (bool(first.calls), bool(second.calls)) == (False, True), "has deploy targets"
