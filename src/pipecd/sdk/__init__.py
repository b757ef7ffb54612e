# SPDX-License-Identifier: Apache-2.0
"""The public interface for plugin authors; everything else may change.

A plugin is a class with `stages` and `execute`; `serve` makes it a program:

    class Greet(StagePlugin):
        stages = (Stage("GREET"),)

        async def execute(self, stage: StageContext) -> StageResult:
            stage.log.info(f"Hello {stage.deployment.application_name}")
            return StageResult.succeeded()

    if __name__ == "__main__":
        serve(Greet)
"""

from pipecd.gotemplate.template import render as render_template
from pipecd.model.application import SyncStatus
from pipecd.model.backoff import Backoff
from pipecd.model.deployment import (
    APPROVED_USERS_KEY,
    DISPLAY_KEY,
    REQUIRED_APPROVALS_KEY,
    ArtifactKind,
    ManualOperation,
    StageStatus,
    SyncStrategy,
)
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.observe.metrics import PluginCounter as Tally
from pipecd.program.run import Finished
from pipecd.sdk.config import Duration, PluginConfig, Spec
from pipecd.sdk.deployment import Commit, Deployment, DeployTarget, PluginEntry, Source
from pipecd.sdk.livestate import (
    Health,
    LiveContext,
    LiveState,
    Preview,
    PreviewContext,
    Resource,
    SyncState,
)
from pipecd.sdk.log import StageLog
from pipecd.sdk.metadata import ApplicationObjects, DeploymentMetadata, StageMetadata
from pipecd.sdk.plugin import (
    DeploymentPlugin,
    LiveStatePlugin,
    PlanContext,
    PlannedStage,
    PreviewPlugin,
    RequestedStage,
    Stage,
    StagePlugin,
    StartContext,
    Strategy,
    Version,
)
from pipecd.sdk.process import serve
from pipecd.sdk.stage import StageCommand, StageCommandKind, StageContext, StageResult
from pipecd.secrets.masking import host_of

# The name under which earlier versions offered `Backoff`.
Pauses = Backoff

__all__ = [
    "APPROVED_USERS_KEY",
    "DISPLAY_KEY",
    "REQUIRED_APPROVALS_KEY",
    "ApplicationObjects",
    "ArtifactKind",
    "Backoff",
    "Commit",
    "DeployTarget",
    "Deployment",
    "DeploymentMetadata",
    "DeploymentPlugin",
    "Duration",
    "Finished",
    "Health",
    "LiveContext",
    "LiveState",
    "LiveStatePlugin",
    "ManualOperation",
    "Pauses",
    "PipecdError",
    "PlanContext",
    "PlannedStage",
    "PluginConfig",
    "PluginEntry",
    "Preview",
    "PreviewContext",
    "PreviewPlugin",
    "RequestedStage",
    "Resource",
    "Source",
    "Spec",
    "Stage",
    "StageCommand",
    "StageCommandKind",
    "StageContext",
    "StageLog",
    "StageMetadata",
    "StagePlugin",
    "StageResult",
    "StageStatus",
    "StartContext",
    "Strategy",
    "SyncState",
    "SyncStatus",
    "SyncStrategy",
    "Tally",
    "Unavailable",
    "UserMistake",
    "Version",
    "host_of",
    "render_template",
    "serve",
]
