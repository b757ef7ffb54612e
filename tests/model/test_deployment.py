# SPDX-License-Identifier: Apache-2.0
"""Transitions between statuses of deployments and stages."""

from itertools import product
from typing import Any, cast

import pytest

from pipecd.model.deployment import (
    IN_CHAIN,
    DeploymentStatus,
    NextStep,
    StageStatus,
    can_transition,
    next_step,
    triggered_by,
    triggering_chain,
    with_stage_names,
)
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentTrigger, PipelineStage


@pytest.mark.parametrize(
    ("stage", "following"),
    [
        (StageStatus.SUCCESS, NextStep.CONTINUE),
        (StageStatus.SKIPPED, NextStep.CONTINUE),
        (StageStatus.EXITED, NextStep.STOP_SUCCEEDED),
        (StageStatus.FAILURE, NextStep.STOP_UNSUCCESSFUL),
        (StageStatus.CANCELLED, NextStep.STOP_UNSUCCESSFUL),
    ],
)
def test_an_ended_stage_decides_what_follows(stage: StageStatus, following: NextStep) -> None:
    assert stage.is_completed
    assert next_step(stage) is following


@pytest.mark.parametrize("stage", [StageStatus.NOT_STARTED_YET, StageStatus.RUNNING])
def test_nothing_follows_a_stage_that_has_not_ended(stage: StageStatus) -> None:
    assert not stage.is_completed
    with pytest.raises(ValueError, match=f"stage is still {stage.name}"):
        next_step(stage)


def test_a_status_of_a_later_version_is_not_guessed_at() -> None:
    with pytest.raises(AssertionError):
        next_step(cast("Any", 99))


def test_a_deployment_only_moves_forward_and_never_leaves_its_end() -> None:
    open_ones = {s for s in DeploymentStatus if not s.is_completed}
    assert open_ones == {
        DeploymentStatus.PENDING,
        DeploymentStatus.PLANNED,
        DeploymentStatus.RUNNING,
        DeploymentStatus.ROLLING_BACK,
    }
    for current, following in product(DeploymentStatus, repeat=2):
        assert can_transition(current, following) is (current in open_ones and current <= following)


KEY = "36b9f027-9706-4e06-b52b-7dbc76a92c4e"


@pytest.mark.parametrize(
    ("commander", "who"),
    [
        pytest.param("", "ann", id="the author of the commit"),
        pytest.param("eve", "eve", id="the user who requested it"),
        pytest.param("chain-1", "its deployment chain", id="its chain, which has no name"),
        pytest.param(KEY, f"API key {KEY}", id="an API key, by its id"),
    ],
)
def test_a_deployment_was_triggered_by(commander: str, who: str) -> None:
    trigger = DeploymentTrigger(commander=commander)
    trigger.commit.author = "ann"
    assert triggered_by(Deployment(trigger=trigger, deployment_chain_id="chain-1")) == who


def test_a_deployment_that_begins_a_chain_may_be_triggered_by_another_chain() -> None:
    trigger = DeploymentTrigger(commander="chain-1", strategy_summary=IN_CHAIN)
    nested = Deployment(trigger=trigger, deployment_chain_id="chain-2")
    assert triggering_chain(nested) == "chain-1"
    assert triggered_by(nested) == "a deployment chain"
    trigger.strategy_summary = "Quick sync"
    assert triggering_chain(Deployment(trigger=trigger)) == ""


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        pytest.param("Failed while executing stage stage-1", "Failed while executing stage A", id="a stage"),
        pytest.param("executing stage stage-10: no", "executing stage B: no", id="an id that begins like another"),
        pytest.param("executing the previous stage of odd.id", r"executing the previous stage of \1 C", id="a name that is no pattern"),
        pytest.param("stage-1 of the river", "stage-1 of the river", id="another word"),
        pytest.param("while executing stage gone", "while executing stage gone", id="an unknown stage"),
    ],
)  # fmt: skip
def test_the_stages_of_a_reason_have_their_names(reason: str, text: str) -> None:
    stages = [("", "none"), ("stage-1", "A"), ("stage-10", "B"), ("odd.id", r"\1 C")]
    deployment = Deployment(stages=[PipelineStage(id=id, name=name) for id, name in stages])
    assert with_stage_names(reason, deployment) == text
    assert with_stage_names(reason, Deployment()) == reason
