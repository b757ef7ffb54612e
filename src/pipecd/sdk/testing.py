# SPDX-License-Identifier: Apache-2.0
"""Runs a plugin without piped and without its platform, in the tests of its author.

bench = StageBench(Greet(), tmp_path)
result = await bench.run("GREET", {"name": "Ann"})
assert bench.host.lines == ["Hello Ann"]
"""

import asyncio
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.config.rendering import RenderingSpec
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.command import API_KEY_NAME, REJECTION_KEY, CommandKind
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import Conflict, NotFound
from pipecd.model.ids import new_id
from pipecd.observe.metrics import PluginMetrics
from pipecd.program.workers import WorkerPool
from pipecd.proto.model import command_pb2, common_pb2, deployment_pb2
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin import host_pb2, source_pb2
from pipecd.sdk.deployment import Deployment, PluginEntry, Source
from pipecd.sdk.host import create_private_directory, plain_git_variables
from pipecd.sdk.livestate import LiveContext, PreviewContext
from pipecd.sdk.plugin import PlanContext, StagePlugin
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.stage import StageCommandKind, StageResult

APPLICATION = "{apiVersion: pipecd.dev/v1beta1, kind: Application, spec: {name: tested}}"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The application in a directory, deployed by one plugin."""

    plugin: str
    directory: Path
    targets: Sequence[str] = ()
    commit: str = "c0ffee"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    commander: str = ""
    config: str = APPLICATION
    application_id: str = "application-1"
    skipped_stages: Collection[int] = ()

    def deployment(self) -> deployment_pb2.Deployment:
        """The deployment of the commit."""
        now = to_unix(utc_now())
        targets = deployment_pb2.DeployTargets(deploy_targets=self.targets)
        return deployment_pb2.Deployment(
            id="deployment-1",
            application_id=self.application_id,
            application_name="tested",
            project_id="project-1",
            piped_id="piped-1",
            labels=self.labels,
            git_path=common_pb2.ApplicationGitPath(
                repo=common_pb2.ApplicationGitRepository(id="repo", remote="https://git.example/x"),
                path="app",
            ),
            deploy_targets_by_plugin={self.plugin: targets},
            trigger=deployment_pb2.DeploymentTrigger(
                commit=deployment_pb2.Commit(
                    hash=self.commit,
                    message="a change",
                    author="ann",
                    branch="main",
                    created_at=now,
                ),
                commander=self.commander,
                timestamp=now,
            ),
            stages=[
                deployment_pb2.PipelineStage(index=i, status=deployment_pb2.STAGE_SKIPPED)
                for i in self.skipped_stages
            ],
            summary="a summary",
            created_at=now,
            updated_at=now,
        )

    def source(self) -> source_pb2.DeploymentSource:
        """The files of the commit."""
        return source_pb2.DeploymentSource(
            application_directory=str(self.directory),
            commit_hash=self.commit,
            application_config=self.config.encode(),
            application_config_filename="app.pipecd.yaml",
            shared_config_directory=str(self.directory / ".pipe"),
        )

    def stage(
        self, name: str, *, index: int = 0, is_rollback: bool = False
    ) -> deployment_pb2.PipelineStage:
        """A stage of the deployment."""
        now = to_unix(utc_now())
        return deployment_pb2.PipelineStage(
            id=f"stage-{index}",
            name=name,
            index=index,
            rollback=is_rollback,
            created_at=now,
            updated_at=now,
        )


_KINDS = {
    StageCommandKind.APPROVE: CommandKind.APPROVE_STAGE,
    StageCommandKind.SKIP: CommandKind.SKIP_STAGE,
    StageCommandKind.REJECT: CommandKind.SKIP_STAGE,
}


class MemoryHost:
    """A piped in memory, for one plugin and one deployment."""

    def __init__(self) -> None:
        self.stage_metadata: dict[str, str] = {}
        self.plugin_metadata: dict[str, str] = {}
        self.shared_metadata: dict[str, str] = {}
        self.objects: dict[str, bytes] = {}
        self.tools: dict[str, Path] = {}
        self.blocks: dict[int, LogBlock] = {}
        self.is_log_completed = False
        self.changed_applications: list[str] = []
        self.plugin_metrics = PluginMetrics()
        self.rendering = RenderingSpec()
        self.workers = WorkerPool()
        self._directory: Path | None = None
        self._commands: list[command_pb2.Command] = []
        self._has_commands = asyncio.Event()
        self._called = asyncio.Event()

    @property
    def lines(self) -> list[str]:
        """The lines of the stage log."""
        return [self.blocks[index].log for index in sorted(self.blocks)]

    def counted(self, name: str, **labels: str) -> float:
        """Returns the value of a counter of the plugin."""
        return self.plugin_metrics.value(name, labels)

    def tell(
        self, kind: StageCommandKind, commander: str, reason: str = "", *, api_key: str = ""
    ) -> None:
        """Sends a command to the running stage, as a user would; a rejection has a reason."""
        command = command_pb2.Command(
            id=new_id(), commander=commander, created_at=len(self._commands) + 1
        )
        command.type = command_pb2.Command.Type.ValueType(_KINDS[kind])
        if kind is StageCommandKind.REJECT:
            command.metadata[REJECTION_KEY] = reason
        if api_key:
            command.metadata[API_KEY_NAME] = api_key
        self._commands.append(command)
        self._has_commands.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until a condition holds, such as a log line or metadata."""
        while not is_so():
            self._called.clear()
            await self._called.wait()

    def watch_commands(self) -> "MemoryHost":
        return self

    def private_directory(self, plugin: str) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="pipecd-plugin-"))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        return create_private_directory(self._directory, plugin)

    def git_variables(self, remote: str) -> Mapping[str, str]:
        return plain_git_variables(remote)

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        self.changed_applications += application_ids
        self._called.set()

    async def wait(self, at_most: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._has_commands.wait()
        self._has_commands.clear()

    def close(self) -> None:
        """Does nothing."""

    async def InstallTool(
        self, request: host_pb2.InstallToolRequest
    ) -> host_pb2.InstallToolResponse:
        name = f"{request.name}-{request.version}"
        path = self.tools.get(name) or self.tools.get(request.name)
        if path is None:
            raise NotFound(
                f"there is no tool {name} here",
                hint="a test puts its path into `tools` of the host; `pipectl plugin check` takes "
                f"it as --tool {request.name}=PATH",
            )
        return host_pb2.InstallToolResponse(installed_path=str(path))

    async def ReportStageLogs(
        self, request: host_pb2.ReportStageLogsRequest
    ) -> host_pb2.ReportStageLogsResponse:
        self._add_blocks(request.blocks)
        return host_pb2.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: host_pb2.ReportStageLogsFromLastCheckpointRequest
    ) -> host_pb2.ReportStageLogsFromLastCheckpointResponse:
        self._add_blocks(request.blocks)
        self.is_log_completed = request.completed
        return host_pb2.ReportStageLogsFromLastCheckpointResponse()

    async def GetStageMetadata(
        self, request: host_pb2.GetStageMetadataRequest
    ) -> host_pb2.GetStageMetadataResponse:
        value = self.stage_metadata.get(request.key)
        return host_pb2.GetStageMetadataResponse(value=value or "", found=value is not None)

    async def PutStageMetadata(
        self, request: host_pb2.PutStageMetadataRequest
    ) -> host_pb2.PutStageMetadataResponse:
        self.stage_metadata[request.key] = request.value
        self._called.set()
        return host_pb2.PutStageMetadataResponse()

    async def PutStageMetadataMulti(
        self, request: host_pb2.PutStageMetadataMultiRequest
    ) -> host_pb2.PutStageMetadataMultiResponse:
        self.stage_metadata.update(request.metadata)
        self._called.set()
        return host_pb2.PutStageMetadataMultiResponse()

    async def GetDeploymentPluginMetadata(
        self, request: host_pb2.GetDeploymentPluginMetadataRequest
    ) -> host_pb2.GetDeploymentPluginMetadataResponse:
        value = self.plugin_metadata.get(request.key)
        return host_pb2.GetDeploymentPluginMetadataResponse(
            value=value or "", found=value is not None
        )

    async def PutDeploymentPluginMetadata(
        self, request: host_pb2.PutDeploymentPluginMetadataRequest
    ) -> host_pb2.PutDeploymentPluginMetadataResponse:
        self.plugin_metadata[request.key] = request.value
        self._called.set()
        return host_pb2.PutDeploymentPluginMetadataResponse()

    async def PutDeploymentPluginMetadataMulti(
        self, request: host_pb2.PutDeploymentPluginMetadataMultiRequest
    ) -> host_pb2.PutDeploymentPluginMetadataMultiResponse:
        self.plugin_metadata.update(request.metadata)
        self._called.set()
        return host_pb2.PutDeploymentPluginMetadataMultiResponse()

    async def GetDeploymentSharedMetadata(
        self, request: host_pb2.GetDeploymentSharedMetadataRequest
    ) -> host_pb2.GetDeploymentSharedMetadataResponse:
        value = self.shared_metadata.get(request.key)
        return host_pb2.GetDeploymentSharedMetadataResponse(
            value=value or "", found=value is not None
        )

    async def ListStageCommands(
        self, request: host_pb2.ListStageCommandsRequest
    ) -> host_pb2.ListStageCommandsResponse:
        return host_pb2.ListStageCommandsResponse(commands=self._commands)

    async def GetApplicationSharedObject(
        self, request: host_pb2.GetApplicationSharedObjectRequest
    ) -> host_pb2.GetApplicationSharedObjectResponse:
        if request.key not in self.objects:
            raise NotFound(f"there is no object {request.key}")
        return host_pb2.GetApplicationSharedObjectResponse(object=self.objects[request.key])

    async def PutApplicationSharedObject(
        self, request: host_pb2.PutApplicationSharedObjectRequest
    ) -> host_pb2.PutApplicationSharedObjectResponse:
        self.objects[request.key] = request.object
        self._called.set()
        return host_pb2.PutApplicationSharedObjectResponse()

    def _add_blocks(self, blocks: Iterable[LogBlock]) -> None:
        if self.is_log_completed:
            raise Conflict("the stage was already completed")
        for block in blocks:
            self.blocks.setdefault(block.index, block)
        self._called.set()


@dataclass
class StageBench:
    """One plugin with a deployment of the application in `directory`."""

    plugin: StagePlugin
    directory: Path
    entry: PluginEntry = field(default_factory=lambda: PluginEntry("tested"))
    host: MemoryHost = field(default_factory=MemoryHost)
    commit: str = "c0ffee"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    commander: str = ""
    config: str = APPLICATION
    application_id: str = "application-1"
    running: "StageBench | None" = None
    """The commit that the deployment replaces; None for a first deployment."""
    skipped_stages: Collection[int] = ()
    """The indexes of the stages that were skipped before."""

    async def run(
        self,
        stage: str,
        options: Mapping[str, Any] | None = None,
        *,
        index: int = 0,
        is_rollback: bool = False,
    ) -> StageResult:
        """Runs a stage with a new log to its end; cancelling the call stops it as piped does."""
        self.host.is_log_completed = False
        server = PluginServer(self.plugin, self.entry, self.host)
        response = await server.ExecuteStage(
            pb.ExecuteStageRequest(
                input=pb.ExecutePluginInput(
                    deployment=self.deployment(),
                    stage=self._sample.stage(stage, index=index, is_rollback=is_rollback),
                    stage_config=json.dumps(options or {}).encode(),
                    target_deployment_source=self._sample.source(),
                    running_deployment_source=self.running and self.running._sample.source(),
                )
            )
        )
        return StageResult(StageStatus(response.status), response.message)

    def plan_context(self, *, running: Source | None = None) -> PlanContext:
        """Returns the argument of `versions` and `strategy`."""
        deployment, targets = Deployment.of(self.deployment()), self.entry.targets
        return PlanContext(deployment, self.source, running, targets, self.entry, self.host)

    def live_context(self) -> LiveContext:
        """Returns the argument of `live_state`."""
        deployment = self.deployment()
        return LiveContext(
            deployment.application_id,
            deployment.application_name,
            deployment.piped_id,
            self.source,
            self.entry.targets,
            self.entry,
            self.host,
        )

    def preview_context(self, *, running: Source | None = None) -> PreviewContext:
        """Returns the argument of `preview`."""
        live = self.live_context()
        return PreviewContext(
            live.application_id,
            live.application_name,
            live.piped_id,
            self.source,
            running,
            self.entry.targets,
            self.entry,
            self.host,
        )

    @property
    def source(self) -> Source:
        """The application as it is in `directory`."""
        return Source.of(self._sample.source())

    def deployment(self) -> deployment_pb2.Deployment:
        """The deployment that the stage belongs to."""
        return self._sample.deployment()

    @property
    def _sample(self) -> Sample:
        return Sample(
            plugin=self.entry.name,
            directory=self.directory,
            targets=[target.name for target in self.entry.targets],
            commit=self.commit,
            labels=self.labels,
            commander=self.commander,
            config=self.config,
            application_id=self.application_id,
            skipped_stages=self.skipped_stages,
        )
