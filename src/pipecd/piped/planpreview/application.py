# SPDX-License-Identifier: Apache-2.0
"""What a change would do to one application, found out the way a deployment would be planned."""

import asyncio
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import structlog

from pipecd.config.application.spec import ApplicationSpec
from pipecd.config.duration import Duration
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.plan.targets import KnownTargets
from pipecd.piped.planning.deployment import Cause, new_deployment
from pipecd.piped.planning.gather import Planning, Prepared, last_success
from pipecd.piped.planning.masked import MaskedSources
from pipecd.piped.planpreview.result import Answer, described, fill, hide
from pipecd.piped.pluginhost.masks import Masks
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Sources
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.planpreview_pb2 import ApplicationPlanPreviewResult
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# A deployment by the merge has no commander, but what its commit message will be is not known:
# as with upstream, rules about messages do not take part.
_COMMANDER = "pipectl"


@dataclass(frozen=True)
class Change:
    """What is to be previewed: the merge of a branch, which nobody has pushed yet."""

    command_id: str
    wanted: Command.BuildPlanPreview
    repository: Repository
    merged: Commit
    deadline: float
    """When the preview must be ready, by the clock of the event loop."""
    within: Duration


class Failed(PipecdError):
    """A step did not succeed; the text says which."""


@dataclass(frozen=True, kw_only=True)
class ApplicationPreviews:
    """Previews applications with the sources and the plugins of this piped."""

    api: ControlPlaneClient
    sources: Sources
    plugins: PluginRegistry
    masks: Masks
    targets: KnownTargets
    now: Now = utc_now

    async def of(
        self, application: Application, spec: ApplicationSpec, change: Change, into: Path
    ) -> ApplicationPlanPreviewResult:
        """The result, also of one that fails; the working copies in `into` are removed."""
        result = described(application, change.wanted, now=to_unix(self.now()))
        deployment = self._deployment(application, spec, change)
        try:
            async with asyncio.timeout_at(change.deadline):
                await self._fill(result, deployment, into)
        except TimeoutError:
            result.error = f"there was no preview within {change.within}"
        except PipecdError as e:
            result.error = str(e)
        except OSError as e:
            result.error = f"failed while planning, {e.strerror or e}"
        finally:
            await asyncio.to_thread(shutil.rmtree, into, ignore_errors=True)
            hide(result, self.masks.of(deployment.id))
            self.masks.forget(deployment.id)
        return result

    def _deployment(
        self, application: Application, spec: ApplicationSpec, change: Change
    ) -> Deployment:
        """The deployment that the merge would trigger; each request has one of its own."""
        return new_deployment(
            application,
            spec,
            Cause(key=f"preview\0{change.command_id}", commander=_COMMANDER),
            commit=change.merged,
            repository=change.repository,
            now=self.now(),
        )

    async def _fill(
        self, result: ApplicationPlanPreviewResult, deployment: Deployment, into: Path
    ) -> None:
        try:
            running = await last_success(self.api, deployment.application_id)
        except PipecdError as e:
            raise Failed(f"failed while finding the last successful deployment ({e})") from e
        # How many applications are worked on is limited as a whole.
        sources = MaskedSources(self.sources, self.masks, deployment.id, nullcontext())
        planning = Planning(sources, self.plugins, targets=self.targets, now=self.now)
        try:
            prepared = await planning.prepare(deployment, running, into)
            result.plugin_names[:] = [plugin.name for plugin in prepared.plugins]
            plan = await planning.decide(prepared)
        except PipecdError as e:
            raise Failed(f"failed while planning, {e}") from e
        answers, errors = await _asked(prepared)
        fill(result, plan.strategy, answers)
        if errors:
            raise Failed(f"failed to get plan preview, {''.join(errors)}")


async def _asked(prepared: Prepared) -> tuple[list[Answer], list[str]]:
    """What the plugins say would happen; what one of them fails at is told beside it."""
    answers: list[Answer] = []
    errors: list[str] = []
    for plugin in prepared.plugins:
        try:
            answer = await plugin.GetPlanPreview(_question(prepared, plugin))
            answers.append(Answer(plugin.name, tuple(answer.results)))
        except Unsupported:
            log.debug("plugin has no plan preview", plugin=plugin.name)
        except PipecdError as e:
            errors.append(f"\n[{plugin.name}] {e}")
    return answers, errors


def _question(prepared: Prepared, plugin: Plugin) -> GetPlanPreviewRequest:
    deployment, given = prepared.deployment, prepared.given
    targets = dict(deployment.deploy_targets_by_plugin)
    question = GetPlanPreviewRequest(
        application_id=deployment.application_id,
        application_name=deployment.application_name,
        piped_id=deployment.piped_id,
        deploy_targets=targets[plugin.name].deploy_targets if plugin.name in targets else (),
        target_deployment_source=given.target_deployment_source,
    )
    if given.HasField("running_deployment_source"):
        question.running_deployment_source.CopyFrom(given.running_deployment_source)
    return question
