# SPDX-License-Identifier: Apache-2.0
"""Computes what planned deployments change, and reports it for the console.

It runs beside the deployments with working copies of its own, a few at a time and within a time
limit, so that it neither delays nor fails any of them. Its result is for people only.
"""

import asyncio
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from structlog.contextvars import bound_contextvars

from pipecd.config.units import Duration
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.plan.stages import TargetsByPlugin
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.planning.planner import Planner, RunningCommit
from pipecd.piped.planning.plugin_previews import get_previews, mask_details, truncate_details
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Sources
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.deployment_changes_pb2 import (
    DeploymentChanges,
    ReportDeploymentChangesRequest,
)
from pipecd.secrets.masking import Masking

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WORKERS = 2
_TIME_LIMIT = Duration(120)
# A push may touch thousands of applications; what is beyond this number is not reported.
_MAX_WAITING = 1000
# In bytes; people read no longer differences.
_MAX_DETAILS, _MAX_SUMMARY = 512 * 1024, 2000
_MAX_ERROR = 2000


@dataclass(frozen=True)
class _Planned:
    deployment: Deployment
    """The object that the deployer updates, so that its stages have their current status."""
    running: RunningCommit | None


@dataclass(kw_only=True)
class ChangeReporter:
    """Reports what each planned deployment changes against the running commit.

    A deployment that was planned before piped was restarted has no report.
    """

    api: ControlPlaneClient
    sources: Sources
    """Whose secrets can all be masked."""
    plugins: PluginRegistry
    masks: SecretMasks
    targets: TargetsByPlugin
    workspace: Path
    time_limit: Duration = _TIME_LIMIT
    now: Now = utc_now
    _waiting: asyncio.Queue[_Planned] = field(
        init=False, default_factory=lambda: asyncio.Queue[_Planned](_MAX_WAITING)
    )
    _is_supported: bool = field(init=False, default=True)
    """False once it is known that the control plane is one of upstream."""

    def planned(self, deployment: Deployment, running: RunningCommit | None) -> None:
        """Queues a deployment that has just been planned; returns at once."""
        if self._is_supported and not self._waiting.full():
            self._waiting.put_nowait(_Planned(deployment, running))

    async def run(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WORKERS):
                tasks.create_task(self._report_each(), name="changes of deployments")

    @property
    def _directory(self) -> Path:
        return self.workspace / "deployment-changes"

    async def _report_each(self) -> None:
        while True:
            planned = await self._waiting.get()
            deployment = planned.deployment
            if not self._is_supported:
                continue
            with bound_contextvars(
                deployment=deployment.id,
                application=deployment.application_id,
                application_name=deployment.application_name,
            ):
                request = ReportDeploymentChangesRequest(
                    deployment_id=deployment.id, changes=await self._changes(planned)
                )
                try:
                    await self.api.report_deployment_changes(request)
                except Unsupported:
                    self._is_supported = False
                except PipecdError as e:
                    log.warning("changes of the deployment not reported", error=str(e))

    async def _changes(self, planned: _Planned) -> DeploymentChanges:
        """Returns the changes, or the reason why they are not known."""
        deployment, running = Deployment(), planned.running
        # Planning sets the deploy targets of its deployment.
        deployment.CopyFrom(planned.deployment)
        changes = DeploymentChanges(running_commit=running.commit if running else "")
        into, is_prepared = self._directory / deployment.id, False
        # The secrets of the deployment itself are forgotten when it ends.
        key = f"changes of {deployment.id}"
        planner = Planner(
            DeploymentSources(self.sources, self.masks, key, nullcontext()),
            self.plugins,
            targets=self.targets,
            now=self.now,
        )
        try:
            async with asyncio.timeout(self.time_limit):
                if await self._has_preview(planner, deployment):
                    is_prepared = True
                    previews = await get_previews(await planner.prepare(deployment, running, into))
                    changes.results.extend(previews.to_proto())
                    changes.no_change = previews.no_change
                    changes.error = "\n".join(previews.errors)
        except TimeoutError:
            changes.error = f"there was no result within {self.time_limit}"
        except PipecdError as e:
            changes.error = str(e)
        except OSError as e:
            changes.error = e.strerror or str(e)
        finally:
            if is_prepared:
                await asyncio.to_thread(shutil.rmtree, into, ignore_errors=True)
                await asyncio.to_thread(_make_presentable, changes, self.masks.of(key))
            else:
                _make_presentable(changes, self.masks.of(key))
            self.masks.forget(key)
        statuses = {stage.status for stage in planned.deployment.stages}
        changes.stages_had_started = bool(statuses - {StageStatus.NOT_STARTED_YET})
        changes.created_at = to_unix(self.now())
        return changes

    async def _has_preview(self, planner: Planner, deployment: Deployment) -> bool:
        """Whether working copies are worth their time."""
        commit = deployment.trigger.commit.hash
        config = await self.sources.config(deployment.git_path, commit)
        return any(
            plugin.has_plan_preview for plugin in planner.select_plugins(deployment, config.spec)
        )


def _make_presentable(changes: DeploymentChanges, masking: Masking) -> None:
    """Masks secrets and truncates what is too long to be read."""
    # In this order: a part of a secret is not recognised.
    mask_details(changes.results, masking)
    for each in changes.results:
        each.plan_summary = each.plan_summary[:_MAX_SUMMARY].decode("utf-8", "ignore").encode()
    truncate_details(changes.results, _MAX_DETAILS)
    changes.error = masking.hide(changes.error)[:_MAX_ERROR]
