# SPDX-License-Identifier: Apache-2.0
"""What the two generations say differently: kinds and providers, or plugins and targets."""
# Documents of the first generation carry their facts in fields that the wire calls deprecated.
# pyright: reportDeprecated=false

from pipecd.controlplane.console.status_badge import kind_word
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import ROLLBACK_STAGE, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage


def platform(document: Deployment | Application) -> str:
    """The platform, or the plugins of the second generation."""
    if document.deploy_targets_by_plugin:
        return ", ".join(sorted(document.deploy_targets_by_plugin))
    if not _provider(document) or document.kind not in set(ApplicationKind):
        return ""
    return kind_word(ApplicationKind(document.kind))


def targets(document: Deployment | Application) -> str:
    """Where it is deployed to."""
    names = [
        target
        for plugin in sorted(document.deploy_targets_by_plugin)
        for target in document.deploy_targets_by_plugin[plugin].deploy_targets
    ]
    return ", ".join(names) or _provider(document)


def is_shown(stage: PipelineStage) -> bool:
    """Rollback stages and predefined ones hide until they are needed."""
    started = stage.status != StageStatus.NOT_STARTED_YET
    return started or not (stage.rollback or (stage.predefined and not stage.visible))


def is_rollback(stage: PipelineStage) -> bool:
    """The first generation marks the stage by its name only."""
    return stage.rollback or stage.name == ROLLBACK_STAGE or stage.name.endswith("_ROLLBACK")


def is_quick_sync(stage: PipelineStage) -> bool:
    """Whether a stage that stands alone is the whole of a quick sync."""
    return stage.predefined or stage.name.endswith("_SYNC")


def _provider(document: Deployment | Application) -> str:
    return document.platform_provider or document.cloud_provider
