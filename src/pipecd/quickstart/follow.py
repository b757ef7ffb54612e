# SPDX-License-Identifier: Apache-2.0
"""Follows the deployments of the quickstart to their ends."""

from collections.abc import AsyncIterator

from pipecd.controlplane.app import ControlPlane
from pipecd.controlplane.bus.signal import Topic
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.quickstart.datadir import PROJECT


async def finished_deployments(plane: ControlPlane) -> AsyncIterator[Deployment]:
    """Each deployment once, when it has ended."""
    told: set[str] = set()
    async with plane.bus.subscribe(project=PROJECT) as signals:
        async for signal in signals:
            if signal.topic is not Topic.DEPLOYMENT or signal.id in told:
                continue
            deployment = await plane.stores.deployments.get(signal.id)
            if DeploymentStatus(deployment.status).is_completed:
                told.add(deployment.id)
                yield deployment
