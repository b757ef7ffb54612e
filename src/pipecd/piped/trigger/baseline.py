# SPDX-License-Identifier: Apache-2.0
"""From which commit on changes count, for each application."""

from dataclasses import dataclass, replace

from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment


@dataclass(frozen=True)
class Baseline:
    """The deployment triggered last, and the commit that was last looked at since."""

    commit: str = ""
    deployment_id: str = ""
    triggered_at: int = 0


class Baselines:
    """What was triggered last: as the control plane knows it, and what happened here since."""

    def __init__(self) -> None:
        self._known: dict[str, Baseline] = {}

    def of(self, application: Application) -> Baseline:
        """The newer of what is known here and what the control plane says."""
        known = self._known.get(application.id)
        if not application.HasField("most_recently_triggered_deployment"):
            return known or Baseline()
        stored = application.most_recently_triggered_deployment
        if known is not None and known.triggered_at >= stored.trigger.timestamp:
            return known
        return Baseline(stored.trigger.commit.hash, stored.deployment_id, stored.trigger.timestamp)

    def seen(self, application: Application, commit: str) -> None:
        """A commit was found not to matter; later changes are compared with it."""
        self._known[application.id] = replace(self.of(application), commit=commit)

    def triggered(self, deployment: Deployment) -> None:
        """A deployment was made."""
        trigger = deployment.trigger
        self._known[deployment.application_id] = Baseline(
            trigger.commit.hash, deployment.id, trigger.timestamp
        )
