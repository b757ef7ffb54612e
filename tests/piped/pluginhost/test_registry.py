# SPDX-License-Identifier: Apache-2.0
"""Which plugin runs a stage, and which plugins an application uses."""

from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec, PipelineSpec, StageSpec
from pipecd.model.errors import UserMistake
from pipecd.piped.pluginhost.local import LocalPlugin
from pipecd.piped.pluginhost.registry import PluginRegistry, RegisteredPlugin
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
    assert REGISTRY.for_stage(stage, spec(plugins=plugins), targets=targets).name == expected


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
