# SPDX-License-Identifier: Apache-2.0
"""What the modules that run deployments share: clients, sources, plugins, files, metadata."""

import asyncio
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.config.catalog import Catalog
from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.observe.deployments import DeploymentTelemetry
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.deploy.changes import ChangeReporter
from pipecd.piped.deploy.reports import DeploymentReports
from pipecd.piped.lease import Drain
from pipecd.piped.notify.notifier import Notifier
from pipecd.piped.plan.stages import TargetsByPlugin
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Sources
from pipecd.program.working_directories import working_directories
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2

# A push may touch hundreds of applications; more working copies at once only fill the disk.
_CONCURRENT_WORKING_COPIES = 16


def logs_directory(workspace: Path, deployment_id: str) -> Path:
    """Returns the directory that spools the stage logs of a deployment until they are sent."""
    return workspace / "deployments" / deployment_id / "logs"


def remove_unused_sources(workspace: Path, in_use: Collection[Path]) -> None:
    """Removes working copies; those of running programs are moved, which they do not notice.

    `in_use` are the working directories of all programs.
    """
    for path in (workspace / "deployments").glob("*/sources*"):
        if not any(directory.is_relative_to(path) for directory in in_use):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name == "sources":
            path.rename(path.with_name(f"sources-{time.time_ns()}"))


@dataclass(frozen=True, kw_only=True)
class DeploymentContext:
    """What it takes to run deployments; one object for all deployments of this piped."""

    api: ControlPlaneClient
    deployments: DeploymentCache
    commands: CommandCache
    sources: Sources
    plugins: PluginRegistry
    catalog: Catalog
    targets: TargetsByPlugin = field(default_factory=dict[str, tuple[str, ...]])
    callbacks: Callbacks
    metadata: MetadataStore
    notifier: Notifier
    changes: ChangeReporter
    workspace: Path
    telemetry: DeploymentTelemetry = field(default_factory=DeploymentTelemetry)
    now: Now = utc_now
    drain: Drain = field(default_factory=Drain)
    copying: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_CONCURRENT_WORKING_COPIES)
    )
    """Limits how many working copies are created at once; it does not limit running stages."""

    def reports(self, deployment: Deployment) -> DeploymentReports:
        """Returns the reports of a deployment to the control plane."""
        on_status = self.telemetry.statuses.changed
        return DeploymentReports(
            self.api, deployment, self.notifier, on_status=on_status, now=self.now
        )

    def journal_file(self, deployment_id: str) -> Path:
        return self.workspace / "deployments" / deployment_id / "journal.json"

    def sources_directory(self, deployment_id: str) -> Path:
        """Returns the directory of a deployment's working copies, which may contain secrets."""
        return self.workspace / "deployments" / deployment_id / "sources"

    def sources_of(self, deployment_id: str) -> DeploymentSources:
        """Returns the working copies of a deployment, which its plan and its stages share."""
        return DeploymentSources(self.sources, self.callbacks.masks, deployment_id, self.copying)

    async def remove_sources(self, deployment_id: str) -> None:
        """Removes the working copies of a deployment."""
        await asyncio.to_thread(self._remove, f"{deployment_id}/sources")

    async def remove_old_sources(self) -> None:
        """Removes the working copies that a killed piped left behind.

        Those in which a program still runs are moved out of the way of new ones.
        """
        await asyncio.to_thread(
            lambda: remove_unused_sources(self.workspace.resolve(), working_directories())
        )

    async def remove_files(self, deployment_id: str) -> None:
        """Removes the files and the masks of a completed deployment."""
        self.callbacks.masks.forget(deployment_id)
        await asyncio.to_thread(self._remove, deployment_id)

    async def load(self, deployment_id: str) -> Deployment:
        """Returns the deployment as the control plane has it; the cached one may be older.

        The control plane is not called for a deployment that this piped has just created.
        """
        if (created := self.deployments.take_created(deployment_id)) is not None:
            return created
        request = piped_pb2.GetDeploymentRequest(id=deployment_id)
        return (await self.api.get_deployment(request)).deployment

    async def report_cancel_commands(self, deployment: Deployment) -> None:
        """Reports all CANCEL_DEPLOYMENT commands of a completed deployment as handled."""
        for command in self.commands.for_deployment(deployment.id):
            if command.type == CommandKind.CANCEL_DEPLOYMENT:
                await self.report_cancel_command(command, DeploymentStatus(deployment.status))

    async def report_cancel_command(self, command: Command, ended_as: DeploymentStatus) -> None:
        """Reports a command that was to cancel a deployment which ended with that status."""
        if ended_as is DeploymentStatus.CANCELLED:
            await self.commands.report(command, CommandStatus.SUCCEEDED)
        else:
            ended = "succeeded" if ended_as is DeploymentStatus.SUCCESS else "failed"
            reason = f"the deployment had already {ended}"
            await self.commands.reject(command, reason)

    def _remove(self, pattern: str) -> None:
        for path in (self.workspace / "deployments").glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
