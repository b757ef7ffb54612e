# SPDX-License-Identifier: Apache-2.0
"""One plugin with one deployment of one application."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.model.deployment import StageStatus
from pipecd.proto.model import deployment_pb2
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.sdk.facts import Deployment, PluginEntry, Source
from pipecd.sdk.look import LiveContext, PreviewContext
from pipecd.sdk.plugin import PlanContext, StagePlugin
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.stage import StageResult
from pipecd.sdk.testing.host import MemoryHost
from pipecd.sdk.testing.sample import APPLICATION, Sample


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
    """The commit that the deployment replaces, none for a first one."""

    async def run(
        self,
        stage: str,
        options: Mapping[str, Any] | None = None,
        *,
        index: int = 0,
        is_rollback: bool = False,
    ) -> StageResult:
        """Runs a stage of a new log to its end; cancel the call to stop it as piped would."""
        self.host.is_log_completed = False
        server = PluginServer(self.plugin, self.entry, self.host)
        answer = await server.ExecuteStage(
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
        return StageResult(StageStatus(answer.status), answer.message)

    def plan_context(self, *, running: Source | None = None) -> PlanContext:
        """What `versions` and `strategy` of a platform are asked with."""
        deployment, targets = Deployment.of(self.deployment()), self.entry.targets
        return PlanContext(deployment, self.source, running, targets, self.entry, self.host)

    def live_context(self) -> LiveContext:
        """What `live_state` is asked with."""
        made = self.deployment()
        return LiveContext(
            made.application_id,
            made.application_name,
            made.piped_id,
            self.source,
            self.entry.targets,
            self.entry,
            self.host,
        )

    def preview_context(self, *, running: Source | None = None) -> PreviewContext:
        """What `preview` is asked with."""
        look = self.live_context()
        return PreviewContext(
            look.application_id,
            look.application_name,
            look.piped_id,
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
        )
