# SPDX-License-Identifier: Apache-2.0
"""The generic part of application files, equal in both generations."""

from pipecd.config.application.chain import ChainApplicationSpec, ChainSpec, PostSyncSpec
from pipecd.config.application.drift import DriftDetectionSpec
from pipecd.config.application.event import (
    EventHandlerSpec,
    EventMatcherSpec,
    EventUpdateSpec,
    EventWatcherFileSpec,
    EventWatchSpec,
    ReplacementSpec,
    WatchedEventSpec,
)
from pipecd.config.application.notification import EVENTS, MentionSpec, NotificationSpec
from pipecd.config.application.pipeline import PipelineSpec, SkipOn, StageSpec
from pipecd.config.application.secret import AttachmentSpec, EncryptionSpec
from pipecd.config.application.spec import ApplicationSpec, CommitMatcherSpec, PlannerSpec
from pipecd.config.application.trigger import (
    OnChainSpec,
    OnCommandSpec,
    OnCommitSpec,
    OnOutOfSyncSpec,
    TriggerSpec,
)

__all__ = [
    "EVENTS",
    "ApplicationSpec",
    "AttachmentSpec",
    "ChainApplicationSpec",
    "ChainSpec",
    "CommitMatcherSpec",
    "DriftDetectionSpec",
    "EncryptionSpec",
    "EventHandlerSpec",
    "EventMatcherSpec",
    "EventUpdateSpec",
    "EventWatchSpec",
    "EventWatcherFileSpec",
    "MentionSpec",
    "NotificationSpec",
    "OnChainSpec",
    "OnCommandSpec",
    "OnCommitSpec",
    "OnOutOfSyncSpec",
    "PipelineSpec",
    "PlannerSpec",
    "PostSyncSpec",
    "ReplacementSpec",
    "SkipOn",
    "StageSpec",
    "TriggerSpec",
    "WatchedEventSpec",
]
