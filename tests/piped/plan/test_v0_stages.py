# SPDX-License-Identifier: Apache-2.0
"""Deployments that a first-generation piped left in the middle."""

from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.model.deployment import StageStatus
from pipecd.piped.plan.v0_stages import adopt_v0_stages
from pipecd.proto.model import common_pb2
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage


def stage(name: str, **fields: Any) -> PipelineStage:
    """A stage as upstream's first-generation piped plans it."""
    return PipelineStage(id=fields.pop("id", name), name=name, **fields)


ROLLBACK = stage("ROLLBACK", id="Rollback", predefined=True)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param(common_pb2.TERRAFORM, "TERRAFORM_ROLLBACK", id="Terraform"),
        pytest.param(common_pb2.KUBERNETES, "K8S_ROLLBACK", id="Kubernetes"),
        pytest.param(common_pb2.CLOUDRUN, "CLOUDRUN_ROLLBACK", id="Cloud Run"),
        pytest.param(common_pb2.LAMBDA, "LAMBDA_ROLLBACK", id="Lambda"),
        pytest.param(common_pb2.ECS, "ECS_ROLLBACK", id="ECS"),
    ],
)
def test_the_rollback_becomes_that_of_the_plugin(
    kind: common_pb2.ApplicationKind.ValueType, expected: str
) -> None:
    deployment = Deployment(kind=kind, stages=[stage("WAIT", id="stage-0"), ROLLBACK])
    adopt_v0_stages(deployment, load_catalog())
    wait, rollback = deployment.stages
    assert (wait.name, wait.rollback) == ("WAIT", False)
    assert (rollback.name, rollback.rollback, rollback.id) == (expected, True, "Rollback")


def test_a_renamed_stage_gets_its_name() -> None:
    deployment = Deployment(kind=common_pb2.TERRAFORM, stages=[stage("TERRAFORM_SYNC")])
    adopt_v0_stages(deployment, load_catalog())
    assert [(each.name, each.rollback) for each in deployment.stages] == [
        ("TERRAFORM_APPLY", False)
    ]


def test_stages_of_plugins_stay_as_they_are() -> None:
    stages = [
        stage("TERRAFORM_PLAN"),
        stage("SCRIPT_RUN", index=1),
        stage("TERRAFORM_ROLLBACK", rollback=True),
        stage("SCRIPT_RUN_ROLLBACK", index=1, rollback=True),
    ]
    deployment = Deployment(stages=stages)
    adopt_v0_stages(deployment, load_catalog())
    assert list(deployment.stages) == stages


@pytest.mark.parametrize(
    ("status", "is_undone"),
    [
        (StageStatus.NOT_STARTED_YET, False),
        (StageStatus.SKIPPED, False),
        (StageStatus.RUNNING, True),
        (StageStatus.SUCCESS, True),
        (StageStatus.FAILURE, True),
    ],
)
def test_a_script_is_undone_if_it_ran(status: StageStatus, is_undone: bool) -> None:
    script = stage("SCRIPT_RUN", id="stage-2", index=2, status=status)
    undo = stage("SCRIPT_RUN_ROLLBACK", predefined=True, metadata={"baseStageID": "stage-2"})
    deployment = Deployment(stages=[script, ROLLBACK, undo])
    adopt_v0_stages(deployment, load_catalog())
    found = [each for each in deployment.stages if each.name == "SCRIPT_RUN_ROLLBACK"]
    assert [(each.index, each.rollback, each.predefined) for each in found] == (
        [(2, True, False)] if is_undone else []
    )
