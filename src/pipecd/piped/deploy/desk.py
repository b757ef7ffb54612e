# SPDX-License-Identifier: Apache-2.0
"""What everyone who works on deployments has at hand."""

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.observe.telemetry import DeploymentTelemetry
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.deploy.metadata import MetadataStores
from pipecd.piped.deploy.reports import Reports
from pipecd.piped.notify.notice import Notices
from pipecd.piped.plan.targets import KnownTargets
from pipecd.piped.planning.masked import MaskedSources
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Sources
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2

# A push may touch hundreds of applications; more at once would only fill the disk and the memory.
_COPIES_AT_ONCE = 16


def logs_of(workspace: Path, deployment_id: str) -> Path:
    """Where the lines of a deployment's stages are kept until they have left."""
    return _place_of(workspace, deployment_id) / "logs"


def _place_of(workspace: Path, deployment_id: str) -> Path:
    return workspace / "deployments" / deployment_id


@dataclass(frozen=True, kw_only=True)
class Desk:
    """The control plane, the sources, the plugins and a place to work."""

    api: ControlPlaneClient
    commands: CommandCache
    sources: Sources
    plugins: PluginRegistry
    targets: KnownTargets
    callbacks: Callbacks
    metadata: MetadataStores
    notices: Notices
    workspace: Path
    telemetry: DeploymentTelemetry = field(default_factory=DeploymentTelemetry)
    now: Now = utc_now
    copying: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_COPIES_AT_ONCE))
    """Lets in so many as make working copies at the same time; stages are not counted."""

    def reports(self, deployment: Deployment) -> Reports:
        """Tells the control plane, and people, what becomes of a deployment."""
        became = self.telemetry.statuses.became
        return Reports(self.api, deployment, self.notices, became=became, now=self.now)

    def journal(self, deployment_id: str) -> Path:
        """The file that outlives this process."""
        return self._place(deployment_id) / "journal.json"

    def sources_of(self, deployment_id: str) -> Path:
        """Where the working copies of a deployment lie, secrets and all."""
        return self._place(deployment_id) / "sources"

    def masked_sources(self, deployment_id: str) -> MaskedSources:
        """Sources whose secrets no log or reason of the deployment shows."""
        return MaskedSources(self.sources, self.callbacks.masks, deployment_id, self.copying)

    async def forget_sources(self, deployment_id: str = "*") -> None:
        """Removes working copies, also those that a killed piped left behind."""
        await asyncio.to_thread(self._remove, f"{deployment_id}/sources")

    async def forget(self, deployment_id: str) -> None:
        """Removes everything about a deployment that is over."""
        self.callbacks.masks.forget(deployment_id)
        await asyncio.to_thread(self._remove, deployment_id)

    async def fresh(self, deployment_id: str) -> Deployment:
        """The deployment as the control plane has it; the mirror may be older."""
        request = piped_pb2.GetDeploymentRequest(id=deployment_id)
        return (await self.api.get_deployment(request)).deployment

    async def answer_cancels(self, deployment_id: str, status: CommandStatus) -> None:
        """Tells those who cancelled a deployment what became of it."""
        for command in self.commands.for_deployment(deployment_id):
            if command.type == CommandKind.CANCEL_DEPLOYMENT:
                await self.commands.report(command, status)

    def _place(self, deployment_id: str) -> Path:
        return _place_of(self.workspace, deployment_id)

    def _remove(self, pattern: str) -> None:
        for path in (self.workspace / "deployments").glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
