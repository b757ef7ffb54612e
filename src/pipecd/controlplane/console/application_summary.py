# SPDX-License-Identifier: Apache-2.0
"""What pages that show a whole project need of each application.

A project may have ten thousand. Their documents are read for every such page, so that nothing is
out of date, but only those that have changed are parsed and summarized.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import intern

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.deploy_targets import platforms
from pipecd.controlplane.console.status_badge import application_status, sync_status
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.usecases.applications import ApplicationUseCases
from pipecd.model.application import SyncStatus
from pipecd.proto.model.application_pb2 import Application


@dataclass(frozen=True, slots=True)
class ApplicationSummary:
    """What lists sort, count and search by; `status` is that without a waiting approval."""

    id: str
    name: str
    folded_name: str
    piped_id: str
    disabled: bool
    labels: Mapping[str, str]
    platforms: tuple[str, ...]
    status: str
    is_unknown: bool
    deployed_at: int
    updated_at: int


def application_summary(application: Application) -> ApplicationSummary:
    """The summary of an application; it depends on nothing else."""
    return ApplicationSummary(
        id=application.id,
        name=application.name,
        folded_name=application.name.casefold(),
        piped_id=intern(application.piped_id),
        disabled=application.disabled,
        # Thousands of applications share a few labels.
        labels={intern(key): intern(value) for key, value in application.labels.items()},
        platforms=tuple(map(intern, platforms(application))),
        status=application_status(application),
        is_unknown=sync_status(application) is SyncStatus.UNKNOWN,
        deployed_at=application.most_recently_triggered_deployment.started_at,
        updated_at=application.updated_at,
    )


async def list_summaries(
    applications: ApplicationUseCases, filter: ApplicationFilter, *, by: User
) -> Sequence[ApplicationSummary]:
    """The applications that the caller may list, newest update first."""
    return await applications.list_derived(filter, application_summary, by=by)
