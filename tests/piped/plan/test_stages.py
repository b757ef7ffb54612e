# SPDX-License-Identifier: Apache-2.0
"""The list of stages, put together from what the plugins plan."""

from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.deployment import StageStatus
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.stages import StageAnswer, StageMint, pipeline_stages, quick_sync_stages
from pipecd.proto.model.deployment_pb2 import PipelineStage

NOW = 1_700_000_000


def mint() -> StageMint:
    numbers = count(1)
    return StageMint(lambda: f"id-{next(numbers)}", NOW)


def stage(name: str, index: int = 0, *, rollback: bool = False) -> PipelineStage:
    return PipelineStage(name=name, index=index, rollback=rollback)


def answer(plugin: str, *stages: PipelineStage) -> StageAnswer:
    asked = {s.index: s.name for s in stages if not s.rollback}
    return StageAnswer(plugin, stages, asked)


def test_a_pipeline_is_ordered_by_index_across_plugins() -> None:
    stages = pipeline_stages(
        [
            answer("k8s", stage("CANARY", 0), stage("PRIMARY", 2), stage("K8S_ROLLBACK", 0, rollback=True)),
            answer("wait", stage("WAIT", 1)),
        ],
        mint(),
    )  # fmt: skip
    assert [s.name for s in stages] == ["CANARY", "WAIT", "PRIMARY", "K8S_ROLLBACK"]
    assert [list(s.requires) for s in stages] == [[], ["id-1"], ["id-2"], []]
    assert [s.visible for s in stages] == [True, True, True, False]


def test_a_quick_sync_keeps_the_order_of_the_plugins() -> None:
    stages = quick_sync_stages(
        [
            answer("a", stage("A_ROLLBACK", rollback=True), stage("A_SYNC")),
            answer("wait"),
            answer("b", stage("B_SYNC")),
        ],
        mint(),
    )
    assert [s.name for s in stages] == ["A_SYNC", "B_SYNC", "A_ROLLBACK"]
    assert list(stages[1].requires) == [stages[0].id]


def test_what_a_plugin_says_about_a_stage_is_kept_and_its_progress_is_not() -> None:
    given_stage = stage("WAIT_APPROVAL", 0)
    given_stage.desc, given_stage.status, given_stage.id = "look first", 2, "mine"
    given_stage.metadata["k"] = "v"
    given_stage.authorized_operators.append("alice")
    (made,) = pipeline_stages([answer("w", given_stage)], mint())
    assert (made.id, made.desc, dict(made.metadata)) == ("id-1", "look first", {"k": "v"})
    assert list(made.authorized_operators) == ["alice"]
    assert made.status == StageStatus.NOT_STARTED_YET
    assert made.created_at == made.updated_at == NOW
    assert given_stage.id == "mine"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        pytest.param([StageAnswer("p", [stage("A", 1)], {0: "A"})], "plugin p planned a stage at index 1", id="an index of somebody else"),
        pytest.param([StageAnswer("p", [stage("A", 0), stage("B", 0)], {0: "A"})], "plugin p planned index 0 twice", id="an index twice"),
        pytest.param([StageAnswer("p", [stage("A", 0), stage("R", 0, rollback=True), stage("R", 0, rollback=True)], {0: "A"})], "plugin p planned index 0 twice", id="two rollbacks of one stage"),
        pytest.param([StageAnswer("p", [stage("R", 3, rollback=True), stage("A", 0)], {0: "A"})], "index 3", id="a rollback at an index of somebody else"),
        pytest.param([StageAnswer("p", [stage("A", 0)], {0: "A", 2: "APPROVAL"})], "plugin p left out stage APPROVAL at index 2", id="a stage that was asked for and left out"),
        pytest.param([StageAnswer("p", [stage("", 0)], {0: "A"})], "without a name", id="a stage without a name"),
        pytest.param([], "the pipeline has no stages", id="nothing at all"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_refused_in_words(answers: list[StageAnswer], told: str) -> None:
    with pytest.raises(UserMistake, match=told):
        pipeline_stages(answers, mint())


def test_an_application_that_cannot_quick_sync_is_told_what_to_do() -> None:
    with pytest.raises(UserMistake, match="alwaysUsePipeline"):
        quick_sync_stages([answer("wait"), answer("script")], mint())


@st.composite
def plans(draw: st.DrawFn) -> list[StageAnswer]:
    """A pipeline of any length whose stages belong to any of three plugins."""
    owners = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
    answers: list[StageAnswer] = []
    for plugin in sorted(set(owners)):
        mine = [i for i, owner in enumerate(owners) if owner == plugin]
        undone = draw(st.lists(st.sampled_from(mine), unique=True))
        stages = [stage(f"S{i}", i) for i in mine]
        stages += [stage(f"R{i}", i, rollback=True) for i in undone]
        shuffled = draw(st.permutations(stages))
        answers.append(StageAnswer(plugin, shuffled, {i: f"S{i}" for i in mine}))
    return draw(st.permutations(answers))


@given(plans())
def test_every_list_of_stages_can_be_carried_out(answers: list[StageAnswer]) -> None:
    stages = pipeline_stages(answers, mint())
    forward = [s for s in stages if not s.rollback]
    rollback = [s for s in stages if s.rollback]
    assert list(stages) == forward + rollback, "what rolls back comes after everything else"
    assert [s.index for s in forward] == list(range(len(forward)))
    assert len({s.id for s in stages}) == len(stages) == sum(len(a.stages) for a in answers)
    assert [list(b.requires) for b in forward[1:]] == [[a.id] for a, _ in pairwise(forward)]
    assert [s.index for s in rollback] == sorted(s.index for s in rollback)
