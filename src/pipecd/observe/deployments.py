# SPDX-License-Identifier: Apache-2.0
"""The gauge `deployment_status`: where every deployment of a piped stands."""

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.common_pb2 import ApplicationKind
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.deployment_pb2 import DeploymentStatus as Status

_LABELS = (
    "deployment", "application_id", "application_name", "application_kind", "platform_provider",
    "status",
)  # fmt: skip


def kind_name(deployment: Deployment) -> str:
    """The kind of an application as it is spelled on the wire; one of tomorrow is a number."""
    try:
        return ApplicationKind.Name(deployment.kind)
    except ValueError:
        return str(deployment.kind)


class DeploymentStatuses(Collector):
    """1 for the status that a deployment has, 0 for every other.

    Open deployments are always shown; those that ended are shown until that was reported once.
    """

    def __init__(self, open_ones: Callable[[], Iterable[Deployment]] = tuple) -> None:
        self._open_ones = open_ones
        self._latest: dict[str, Deployment] = {}
        self._shown: frozenset[str] = frozenset()

    def became(self, deployment: Deployment) -> None:
        """A deployment took a step, of which the lists do not know yet."""
        kept = Deployment()
        kept.CopyFrom(deployment)
        self._latest[deployment.id] = kept

    def reported(self) -> None:
        """What was collected last is known elsewhere."""
        for id in self._shown & self._latest.keys():
            if DeploymentStatus(self._latest[id].status).is_completed:
                del self._latest[id]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "deployment_status",
            "The current status of deployment. 1 for current status, 0 for others.",
            labels=_LABELS,
        )
        current = {one.id: one for one in self._open_ones()} | self._latest
        self._shown = frozenset(current)
        for one in current.values():
            about = (
                one.id, one.application_id, one.application_name,
                kind_name(one), one.platform_provider,
            )  # fmt: skip
            for status in Status.values():
                family.add_metric((*about, Status.Name(status)), float(status == one.status))
        yield family
