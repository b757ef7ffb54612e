# SPDX-License-Identifier: Apache-2.0
"""Every example is decoded without a warning, listed, and planned by the plugins it names."""

import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec, is_application_file
from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_file
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.deployment import SyncStrategy
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.planning.planner import Plan, Planner
from pipecd.piped.pluginhost.local import LocalPlugin, builtin_plugins
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.registry import PluginRegistry, RegisteredPlugin
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Sources
from pipecd.plugins.scriptrun.plugin import ScriptRunPlugin
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger, DeployTargets
from pipecd.sdk import DeployTarget, PluginEntry, StageStatus
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.testing import MemoryHost, StageBench
from servers.origin import Origin

EXAMPLES = Path(__file__).parents[3] / "examples"
CATALOG = load_catalog()
GENERIC = ("analysis", "scriptrun", "wait", "waitapproval")
FILES = sorted(path for path in EXAMPLES.rglob("*.yaml") if is_application_file(path.name))
SCRIPTS = [path for path in FILES if "SCRIPT_RUN" in path.read_text()]
# The deploy targets that examples may name, with what their plugins require.
AWS = {"region": "eu-west-1"}
TARGETS: dict[str, dict[str, dict[str, str]]] = {
    "kubernetes": {"main": {}},
    "kubernetes_multicluster": {"europe": {}, "america": {}},
    "terraform": {"main": {}},
    "ecs": {"main": AWS},
    "lambda": {"main": AWS},
    "cloudrun": {"main": {"project": "shop", "region": "europe-west1"}},
    "process": {"main": {}},
}


def name_of(path: Path) -> str:
    return str(path.parent.relative_to(EXAMPLES))


def spec_of(file: Path) -> ApplicationSpec:
    spec = read_file(file.read_text(), file=str(file), catalog=CATALOG).spec
    assert isinstance(spec, ApplicationSpec)
    return spec


async def hosted(name: str, lifetime: AsyncExitStack) -> RegisteredPlugin:
    plugin = builtin_plugins()[name]()
    targets = tuple(DeployTarget(t, {}, config) for t, config in TARGETS.get(name, {}).items())
    server = PluginServer(plugin, PluginEntry(name, {}, targets), MemoryHost())
    await server.prepare(lifetime)
    return RegisteredPlugin(LocalPlugin(server), frozenset(stage.name for stage in plugin.stages))


@asynccontextmanager
async def planning(
    origin: Origin, tmp_path: Path
) -> AsyncGenerator[Callable[[Path], Awaitable[Plan]]]:
    """Plans deployments of examples, which are committed to one repository, with the built-in plugins."""
    commit = origin.commit(
        {str(f.relative_to(EXAMPLES)): f.read_text() for f in EXAMPLES.rglob("*") if f.is_file()}
    )
    repository = Repository("site", origin.remote, "main")
    async with (
        open_mirrors(
            [repository], directory=tmp_path / "mirrors", credentials=GitCredentials()
        ) as mirrors,
        WorkerPool() as workers,
        AsyncExitStack() as lifetime,
    ):
        renderer = TemplateRenderer(workers)
        sources = Sources(mirrors, ApplicationConfigs(CATALOG), project="shop", renderer=renderer)

        async def plan(file: Path) -> Plan:
            spec = spec_of(file)
            platforms = [name for name in TARGETS if name in spec.plugins]
            planner = Planner(
                DeploymentSources(sources, SecretMasks(), "d", nullcontext()),
                PluginRegistry([await hosted(name, lifetime) for name in (*platforms, *GENERIC)]),
                targets={name: tuple(TARGETS[name]) for name in platforms},
            )
            deployment = Deployment(
                id="d",
                application_id="a",
                application_name=spec.name,
                git_path=ApplicationGitPath(
                    repo=ApplicationGitRepository(id="site"),
                    path=name_of(file),
                    config_filename=file.name,
                ),
                deploy_targets_by_plugin={
                    name: DeployTargets(deploy_targets=list(TARGETS[name])) for name in platforms
                },
                trigger=DeploymentTrigger(
                    commit=Commit(hash=commit, message="m"), sync_strategy=strategy_of(spec)
                ),
            )
            return await planner.plan(deployment, None, tmp_path / spec.name)

        yield plan


def strategy_of(spec: ApplicationSpec) -> Any:
    return SyncStrategy.PIPELINE if written_stages(spec) else SyncStrategy.QUICK_SYNC


def written_stages(spec: ApplicationSpec) -> list[str]:
    return [stage.name for stage in spec.pipeline.stages] if spec.pipeline else []


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_an_example_is_decoded_without_a_warning(file: Path) -> None:
    assert read_file(file.read_text(), file=str(file), catalog=CATALOG).warnings == ()


async def test_every_example_is_planned_as_it_is_written(origin: Origin, tmp_path: Path) -> None:
    async with planning(origin, tmp_path) as plan:
        for file in FILES:
            spec, made = spec_of(file), await plan(file)
            stages = [stage.name for stage in made.stages if not stage.rollback]
            assert made.strategy is strategy_of(spec), spec.name
            assert stages == (written_stages(spec) or stages[:1]), spec.name
            has_platform = bool(TARGETS.keys() & spec.plugins.keys())
            assert any(stage.rollback for stage in made.stages) >= has_platform, spec.name


@pytest.mark.parametrize("file", SCRIPTS, ids=name_of)
async def test_the_scripts_of_an_example_succeed(file: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(file.parent, tmp_path / "application")
    pipeline = spec_of(file).pipeline
    assert pipeline is not None
    scripts = [stage.with_ for stage in pipeline.stages if stage.name == "SCRIPT_RUN"]
    undone = [{"run": options["onRollback"]} for options in scripts if "onRollback" in options]
    bench = StageBench(ScriptRunPlugin(), directory)
    for options in (*scripts, *undone):
        result = await bench.run("SCRIPT_RUN", options)
        assert result.status is StageStatus.SUCCESS, bench.host.lines


def test_there_is_an_example_for_every_platform_and_each_is_listed() -> None:
    folders = {path.relative_to(EXAMPLES).parts[0] for path in FILES}
    assert {"kubernetes", "terraform", "ecs", "lambda", "cloudrun", "process", "script"} <= folders
    listed = (EXAMPLES / "README.md").read_text()
    pages = [str(page.relative_to(EXAMPLES)) for page in EXAMPLES.rglob("README.md")]
    assert [page for page in pages if page != "README.md" and f"({page})" not in listed] == []
