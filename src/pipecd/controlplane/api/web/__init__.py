# SPDX-License-Identifier: Apache-2.0
"""The door for gRPC-Web clients: WebService, one module per noun."""

from pipecd.controlplane.api.web.api_keys import ApiKeyRpcs
from pipecd.controlplane.api.web.applications import ApplicationRpcs
from pipecd.controlplane.api.web.deployments import DeploymentRpcs
from pipecd.controlplane.api.web.events import EventRpcs
from pipecd.controlplane.api.web.gate import SERVICE, WebTable
from pipecd.controlplane.api.web.pipeds import PipedRpcs
from pipecd.controlplane.api.web.projects import ProjectRpcs
from pipecd.controlplane.api.web.roles import RoleRpcs
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.usecases import UseCases
from pipecd.wire.table import RpcObserver, RpcTable

# These need the release notes of the project and the sums of the insight room.
NOT_YET = frozenset(
    {
        "ListReleasedVersions",
        "ListDeprecatedNotes",
        "GetInsightData",
        "GetInsightApplicationCount",
    }
)


def web_table(cases: UseCases, *, observer: RpcObserver | None = None) -> RpcTable[Person]:
    """WebService for people with a session."""

    parts = (
        ApplicationRpcs(cases),
        DeploymentRpcs(cases),
        PipedRpcs(cases),
        ProjectRpcs(cases),
        RoleRpcs(cases),
        ApiKeyRpcs(cases),
        EventRpcs(cases),
    )
    return WebTable(cases, parts, not_yet=NOT_YET, observer=observer)


__all__ = ["SERVICE", "web_table"]
