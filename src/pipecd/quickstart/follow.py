# SPDX-License-Identifier: Apache-2.0
"""Follows the deployments of the quickstart to their ends."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pipecd.controlplane.app import ControlPlane
from pipecd.controlplane.bus.signal import Topic
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.quickstart.datadir import PROJECT


@dataclass(frozen=True)
class End:
    """A deployment that has ended, and how long that took as seen from here."""

    deployment: Deployment
    seconds: float


async def ended_deployments(plane: ControlPlane) -> AsyncIterator[End]:
    """Each deployment once, when it has ended."""
    seen: dict[str, float] = {}
    told: set[str] = set()
    async with plane.bus.subscribe(project=PROJECT) as signals:
        async for signal in signals:
            if signal.topic is not Topic.DEPLOYMENT or signal.id in told:
                continue
            began = seen.setdefault(signal.id, time.monotonic())
            deployment = await plane.stores.deployments.get(signal.id)
            if DeploymentStatus(deployment.status).is_completed:
                told.add(deployment.id)
                yield End(deployment, time.monotonic() - seen.pop(deployment.id, began))
