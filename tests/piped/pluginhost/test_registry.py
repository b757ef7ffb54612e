# SPDX-License-Identifier: Apache-2.0
"""Which plugin runs a stage, and which plugins an application uses."""

from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec, PipelineSpec, StageSpec
from pipecd.model.errors import UserMistake
from pipecd.piped.pluginhost.local import LocalPlugin
from pipecd.piped.pluginhost.plugin import PluginNotStarted
from pipecd.piped.pluginhost.registry import PluginRegistry, RegisteredPlugin, StartFailure
from pipecd.sdk import PluginEntry, Stage, StageContext, StagePlugin, StageResult
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.testing import MemoryHost


class NoopPlugin(StagePlugin):
    stages = (Stage("X"),)

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()


def registered(name: str, *stages: str, configured: bool = True) -> RegisteredPlugin:
    server = PluginServer(NoopPlugin(), PluginEntry(name), MemoryHost())
    return RegisteredPlugin(LocalPlugin(server), frozenset(stages), configured)


REGISTRY = PluginRegistry(
    [
        registered("east", "SYNC", "CANARY"),
        registered("west", "SYNC", "WAIT"),
        registered("wait", "WAIT", configured=False),
        registered("script", "SCRIPT", configured=False),
    ]
)


def spec(*stages: str, plugins: tuple[str, ...] = ()) -> ApplicationSpec:
    listed = tuple(StageSpec.model_validate({"name": name}) for name in stages)
    return ApplicationSpec(
        pipeline=PipelineSpec(stages=listed), plugins={name: {} for name in plugins}
    )


@pytest.mark.parametrize(
    ("stage", "plugins", "targets", "expected"),
    [
        pytest.param("CANARY", (), (), "east", id="only one offers it"),
        pytest.param("SYNC", ("west",), (), "west", id="the application names one"),
        pytest.param("SYNC", (), ("east",), "east", id="the application has targets for one"),
        pytest.param("SYNC", ("east", "west"), ("west",), "west", id="it names both and has targets for one"),
        pytest.param("SYNC", ("west",), ("east",), "west", id="the named plugin comes first"),
        pytest.param("WAIT", (), (), "west", id="a configured plugin takes precedence over a built-in one"),
        pytest.param("SCRIPT", (), (), "script", id="a built-in plugin without configuration"),
    ],
)  # fmt: skip
def test_the_plugin_of_a_stage(
    stage: str, plugins: tuple[str, ...], targets: tuple[str, ...], expected: str
) -> None:
    by_plugin = dict.fromkeys(targets, ("dev",))
    assert REGISTRY.for_stage(stage, spec(plugins=plugins), targets=by_plugin).name == expected


@pytest.mark.parametrize(
    ("lookup", "message"),
    [
        pytest.param(lambda: REGISTRY.for_stage("SYNC", spec()), "several plugins offer the stage SYNC: east, west; name one of them", id="ambiguous"),
        pytest.param(lambda: REGISTRY.for_stage("DANCE", spec()), "no plugin found for the stage DANCE; the plugins of this piped offer: CANARY, SCRIPT, SYNC, WAIT", id="no plugin has the stage"),
        pytest.param(lambda: REGISTRY.named("north"), "no plugin found for the given plugin name north; .* east, west, wait, script", id="no plugin has that name"),
        pytest.param(lambda: REGISTRY.of_application(spec()), "no plugin specified", id="an application without plugins and pipeline"),
    ],
)  # fmt: skip
def test_a_lookup_that_fails(lookup: Any, message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        lookup()


@pytest.mark.parametrize(
    ("application", "names"),
    [
        pytest.param(spec("WAIT", "CANARY", "WAIT", plugins=("script",)), ["west", "east"], id="those of its pipeline, once each, in its order"),
        pytest.param(spec(plugins=("script", "east")), ["script", "east"], id="those it names, without a pipeline"),
    ],
)  # fmt: skip
def test_the_plugins_of_an_application(application: ApplicationSpec, names: list[str]) -> None:
    assert [plugin.name for plugin in REGISTRY.of_application(application)] == names


PARTIAL = PluginRegistry(
    [registered("east", "SYNC"), registered("wait", "WAIT", configured=False)],
    [StartFailure("west", "no licence"), StartFailure("east", "no region", target="far")],
)
FAR, NEAR = {"east": ("near", "far")}, {"east": ("near",)}


@pytest.mark.parametrize(
    ("lookup", "message"),
    [
        pytest.param(lambda: PARTIAL.named("west"), "plugin west is not running: no licence", id="by name"),
        pytest.param(lambda: PARTIAL.of_application(spec(plugins=("west",))), "plugin west is not running: no licence", id="of an application that names it"),
        pytest.param(lambda: PARTIAL.of_application(spec("WAIT", plugins=("west",))), "plugin west is not running", id="of an application with other stages"),
        pytest.param(lambda: PARTIAL.for_stage("SYNC", spec(plugins=("west",))), "plugin west is not running", id="whose stage another plugin has too"),
        pytest.param(lambda: PARTIAL.for_stage("CANARY", spec()), "no running plugin has the stage CANARY; plugin west is not running: no licence", id="for a stage that no running plugin has"),
        pytest.param(lambda: PARTIAL.of_application(spec("SYNC"), targets=FAR), "deploy target far of plugin east is unusable: no region", id="by a deploy target"),
    ],
)  # fmt: skip
def test_a_lookup_of_what_does_not_run(lookup: Any, message: str) -> None:
    with pytest.raises(PluginNotStarted, match=message):
        lookup()


def test_what_runs_is_found_beside_what_does_not() -> None:
    assert PARTIAL.for_stage("WAIT", spec(plugins=("west",))).name == "wait"
    assert PARTIAL.for_stage("SYNC", spec(), targets=NEAR).name == "east"
    assert [each.name for each in PARTIAL.of_application(spec("SYNC"), targets=NEAR)] == ["east"]
