# SPDX-License-Identifier: Apache-2.0
"""Stages, skipped stages, deploy targets and versions of a plan."""

from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.application import SkipOn
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.stages import (
    PluginStages,
    StageFactory,
    deploy_targets,
    merge_versions,
    pipeline_stages,
    quick_sync_stages,
    skip_reason,
)
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets, PipelineStage

NOW = 1_700_000_000


def factory() -> StageFactory:
    numbers = count(1)
    return StageFactory(lambda: f"id-{next(numbers)}", NOW)


def stage(name: str, index: int = 0, *, rollback: bool = False) -> PipelineStage:
    return PipelineStage(name=name, index=index, rollback=rollback)


def planned(plugin: str, *stages: PipelineStage) -> PluginStages:
    requested = {s.index: s.name for s in stages if not s.rollback}
    return PluginStages(plugin, stages, requested)


def test_a_pipeline_is_ordered_by_index_across_plugins() -> None:
    stages = pipeline_stages(
        [
            planned("k8s", stage("CANARY", 0), stage("PRIMARY", 2), stage("K8S_ROLLBACK", 0, rollback=True)),
            planned("wait", stage("WAIT", 1)),
        ],
        factory(),
    )  # fmt: skip
    assert [s.name for s in stages] == ["CANARY", "WAIT", "PRIMARY", "K8S_ROLLBACK"]
    assert [list(s.requires) for s in stages] == [[], ["id-1"], ["id-2"], []]
    assert [s.visible for s in stages] == [True, True, True, False]


def test_a_quick_sync_keeps_the_order_of_the_plugins() -> None:
    stages = quick_sync_stages(
        [
            planned("a", stage("A_ROLLBACK", rollback=True), stage("A_SYNC")),
            planned("wait"),
            planned("b", stage("B_SYNC")),
        ],
        factory(),
    )
    assert [s.name for s in stages] == ["A_SYNC", "B_SYNC", "A_ROLLBACK"]
    assert list(stages[1].requires) == [stages[0].id]


def test_a_planned_stage_keeps_its_description_and_starts_as_not_started() -> None:
    given_stage = stage("WAIT_APPROVAL", 0)
    given_stage.desc, given_stage.status, given_stage.id = "look first", 2, "mine"
    given_stage.metadata["k"] = "v"
    given_stage.authorized_operators.append("alice")
    (made,) = pipeline_stages([planned("w", given_stage)], factory())
    assert (made.id, made.desc, dict(made.metadata)) == ("id-1", "look first", {"k": "v"})
    assert list(made.authorized_operators) == ["alice"]
    assert made.status == StageStatus.NOT_STARTED_YET
    assert made.created_at == made.updated_at == NOW
    assert given_stage.id == "mine"


@pytest.mark.parametrize(
    ("responses", "error"),
    [
        pytest.param([PluginStages("p", [stage("A", 1)], {0: "A"})], "plugin p planned a stage at index 1", id="an index of another plugin"),
        pytest.param([PluginStages("p", [stage("A", 0), stage("B", 0)], {0: "A"})], "plugin p planned index 0 twice", id="an index twice"),
        pytest.param([PluginStages("p", [stage("A", 0), stage("R", 0, rollback=True), stage("R", 0, rollback=True)], {0: "A"})], "plugin p planned index 0 twice", id="two rollbacks of one stage"),
        pytest.param([PluginStages("p", [stage("R", 3, rollback=True), stage("A", 0)], {0: "A"})], "index 3", id="a rollback at an index of another plugin"),
        pytest.param([PluginStages("p", [stage("A", 0)], {0: "A", 2: "APPROVAL"})], "plugin p left out stage APPROVAL at index 2", id="a requested stage is missing"),
        pytest.param([PluginStages("p", [stage("", 0)], {0: "A"})], "without a name", id="a stage without a name"),
        pytest.param([], "the pipeline has no stages", id="no stages"),
    ],
)  # fmt: skip
def test_an_invalid_response_of_a_plugin_is_rejected(
    responses: list[PluginStages], error: str
) -> None:
    with pytest.raises(UserMistake, match=error):
        pipeline_stages(responses, factory())


def test_an_application_without_quick_sync_gets_a_hint() -> None:
    with pytest.raises(UserMistake, match="alwaysUsePipeline"):
        quick_sync_stages([planned("wait"), planned("script")], factory())


@st.composite
def plans(draw: st.DrawFn) -> list[PluginStages]:
    """A pipeline of any length whose stages belong to any of three plugins."""
    plugins_by_index = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
    responses: list[PluginStages] = []
    for plugin in sorted(set(plugins_by_index)):
        mine = [i for i, owner in enumerate(plugins_by_index) if owner == plugin]
        undone = draw(st.lists(st.sampled_from(mine), unique=True))
        stages = [stage(f"S{i}", i) for i in mine]
        stages += [stage(f"R{i}", i, rollback=True) for i in undone]
        shuffled = draw(st.permutations(stages))
        responses.append(PluginStages(plugin, shuffled, {i: f"S{i}" for i in mine}))
    return draw(st.permutations(responses))


@given(plans())
def test_every_pipeline_is_in_order(responses: list[PluginStages]) -> None:
    stages = pipeline_stages(responses, factory())
    forward = [s for s in stages if not s.rollback]
    rollback = [s for s in stages if s.rollback]
    assert list(stages) == forward + rollback, "rollback stages come last"
    assert [s.index for s in forward] == list(range(len(forward)))
    assert len({s.id for s in stages}) == len(stages) == sum(len(a.stages) for a in responses)
    assert [list(b.requires) for b in forward[1:]] == [[a.id] for a, _ in pairwise(forward)]
    assert [s.index for s in rollback] == sorted(s.index for s in rollback)


DOCS = SkipOn(paths=("docs/**", "**/*.md"))
CHORE = SkipOn(commit_message_prefixes=("chore:",))
BOTH = SkipOn(paths=("docs/**",), commit_message_prefixes=("chore:",))


@pytest.mark.parametrize(
    ("skip_on", "message", "changed", "skipped"),
    [
        pytest.param(SkipOn(), "chore: x", ["a"], False, id="nothing configured means never"),
        pytest.param(DOCS, "x", ["docs/a.txt", "web/README.md"], True, id="every changed file matches"),
        pytest.param(DOCS, "x", ["docs/a.txt", "web/main.go"], False, id="one changed file does not match"),
        pytest.param(DOCS, "x", [], True, id="nothing changed"),
        pytest.param(DOCS, "x", None, False, id="there is nothing to compare with on a first deployment"),
        pytest.param(CHORE, "chore: tidy up", None, True, id="the message counts on a first deployment"),
        pytest.param(CHORE, "fix\nchore: tidy up", ["a"], False, id="only the subject counts"),
        pytest.param(BOTH, "chore: x", ["web/main.go"], True, id="either condition suffices"),
    ],
)  # fmt: skip
def test_skip_on(skip_on: SkipOn, message: str, changed: list[str] | None, skipped: bool) -> None:
    reason = skip_reason(skip_on, commit_message=message, changed_files=changed)
    assert (reason is not None) == skipped


CONFIGURED = {"kubernetes": ("dev", "prod"), "k8s_go": ("prod",), "wait": ()}


def with_targets(**targets: list[str]) -> dict[str, Any]:
    chosen = {plugin: DeployTargets(deploy_targets=names) for plugin, names in targets.items()}
    return {"deploy_targets_by_plugin": chosen}


@pytest.mark.parametrize(
    ("facts", "plugins", "targets"),
    [
        pytest.param(with_targets(kubernetes=["dev", "prod"]), [], {"kubernetes": ("dev", "prod")}, id="deploy targets are taken as they are"),
        pytest.param({**with_targets(kubernetes=["dev"]), "platform_provider": "prod"}, ["kubernetes"], {"kubernetes": ("dev",)}, id="and count more than a provider"),
        pytest.param({"platform_provider": "prod"}, ["kubernetes"], {"kubernetes": ("prod",)}, id="a platform provider is a target of its plugin"),
        pytest.param({"cloud_provider": "prod"}, ["kubernetes"], {"kubernetes": ("prod",)}, id="under its older name too"),
        pytest.param({"platform_provider": "prod"}, ["k8s_go"], {"k8s_go": ("prod",)}, id="only of the plugin that the application names"),
        pytest.param({"platform_provider": "prod"}, ["kubernetes", "wait"], {"kubernetes": ("prod",)}, id="a plugin of stages only has none"),
        pytest.param({"platform_provider": "prod"}, [], {}, id="an application without a platform needs none"),
        pytest.param({}, ["kubernetes"], {}, id="without targets and provider there are none"),
        pytest.param(with_targets(elsewhere=["x"]), [], {"elsewhere": ("x",)}, id="a plugin that piped does not have is reported later"),
    ],
)  # fmt: skip
def test_deploy_targets(facts: dict[str, Any], plugins: list[str], targets: dict[str, Any]) -> None:
    assert deploy_targets(Deployment(**facts), plugins, CONFIGURED) == targets


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        pytest.param({"platform_provider": "moon"}, "platform provider moon is not defined for plugin kubernetes; .* use one of: dev, prod", id="a provider"),
        pytest.param(with_targets(kubernetes=["moon"]), "deploy target moon is not defined for plugin kubernetes; .* dev, prod", id="a target"),
    ],
)  # fmt: skip
def test_an_undefined_target_is_named(facts: dict[str, Any], error: str) -> None:
    with pytest.raises(UserMistake, match=error):
        deploy_targets(Deployment(**facts), ["kubernetes"], CONFIGURED)


def test_every_plugin_adds_its_versions_once() -> None:
    a, b = ArtifactVersion(version="v1", name="web"), ArtifactVersion(version="v1", name="job")
    assert merge_versions([[a], [b, a], []]) == (a, b)


def test_without_versions_the_version_is_unknown() -> None:
    (unknown,) = merge_versions([[], []])
    assert (unknown.kind, unknown.version) == (ArtifactVersion.UNKNOWN, "unknown")
