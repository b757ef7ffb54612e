# SPDX-License-Identifier: Apache-2.0
"""Deployments for the tests of the model."""

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentTrigger, PipelineStage


def deployment(
    id_: str = "d",
    status: DeploymentStatus = DeploymentStatus.SUCCESS,
    *stages: tuple[str, StageStatus],
    commander: str = "",
    commit: str = "new",
    reason: str = "",
    application: str = "web",
    chain: str = "",
) -> Deployment:
    """A deployment of an application by the piped `p`."""
    return Deployment(
        id=id_,
        application_name=application,
        deployment_chain_id=chain,
        piped_id="p",
        status=pb.DeploymentStatus.ValueType(status),
        status_reason=reason,
        trigger=DeploymentTrigger(commander=commander, commit=pb.Commit(hash=commit)),
        stages=[
            PipelineStage(
                id=f"{id_}-{index}",
                name=name,
                index=index,
                status=pb.StageStatus.ValueType(each),
            )
            for index, (name, each) in enumerate(stages)
        ],
    )
