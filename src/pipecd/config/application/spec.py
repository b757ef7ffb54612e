# SPDX-License-Identifier: Apache-2.0
"""An application, in the one form that everything behind the border works with."""

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from pipecd.config.application.chain import PostSyncSpec
from pipecd.config.application.drift import DriftDetectionSpec
from pipecd.config.application.event import EventWatchSpec
from pipecd.config.application.notification import NotificationSpec
from pipecd.config.application.pipeline import PipelineSpec
from pipecd.config.application.secret import AttachmentSpec, EncryptionSpec
from pipecd.config.application.trigger import TriggerSpec
from pipecd.config.duration import Duration
from pipecd.config.spec import Advice, Spec

DEPLOYMENT_TIMEOUT = Duration(6 * 3600)


class PlannerSpec(Spec):
    """How a deployment is planned, and whether its failure is rolled back."""

    always_use_pipeline: bool = False
    auto_rollback: bool = True


class CommitMatcherSpec(Spec):
    """Regular expressions over the subject of a commit that decide for one strategy."""

    pipeline: str = ""
    quick_sync: str = ""

    def advice(self) -> Iterator[Advice]:
        """Yield an expression that cannot match anything."""
        for key, expression in (("pipeline", self.pipeline), ("quickSync", self.quick_sync)):
            try:
                with warnings.catch_warnings(action="ignore"):
                    re.compile(expression)
            except (re.error, RecursionError, OverflowError) as e:
                yield Advice((key,), f"not a regular expression: {e}")


class ApplicationSpec(Spec):
    """What is deployed, when, how and who hears of it.

    `plugins` holds the sections of the plugins as they are written, also for v0 kinds.
    """

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    description: str = ""
    planner: PlannerSpec = PlannerSpec()
    commit_matcher: CommitMatcherSpec = CommitMatcherSpec()
    pipeline: PipelineSpec = PipelineSpec()
    trigger: TriggerSpec = TriggerSpec()
    post_sync: PostSyncSpec | None = None
    timeout: Duration = DEPLOYMENT_TIMEOUT
    encryption: EncryptionSpec | None = None
    attachment: AttachmentSpec | None = None
    notification: NotificationSpec | None = None
    event_watcher: tuple[EventWatchSpec, ...] = ()
    drift_detection: DriftDetectionSpec | None = None
    plugins: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict[str, Mapping[str, Any]])

    def advice(self) -> Iterator[Advice]:
        """Yield what is doubtful about an application."""
        if self.timeout < 0:
            yield Advice(("timeout",), "is negative, every deployment times out at once")
