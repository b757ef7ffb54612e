# SPDX-License-Identifier: Apache-2.0
"""The door for gRPC-Web clients: WebService, one module per noun."""

from pipecd.controlplane.api.web.api_keys import ApiKeyRpcs
from pipecd.controlplane.api.web.applications import ApplicationRpcs
from pipecd.controlplane.api.web.deployments import DeploymentRpcs
from pipecd.controlplane.api.web.events import EventRpcs
from pipecd.controlplane.api.web.gate import gated
from pipecd.controlplane.api.web.pipeds import PipedRpcs
from pipecd.controlplane.api.web.projects import ProjectRpcs
from pipecd.controlplane.api.web.roles import RoleRpcs
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import web_pb2
from pipecd.wire.credentials import Metadata, session_cookie
from pipecd.wire.table import RpcObserver, RpcTable

SERVICE = web_pb2.DESCRIPTOR.services_by_name["WebService"]

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

    async def authenticate(metadata: Metadata) -> Person:
        return cases.sessions.read(session_cookie(metadata))

    parts = (
        ApplicationRpcs(cases),
        DeploymentRpcs(cases),
        PipedRpcs(cases),
        ProjectRpcs(cases),
        RoleRpcs(cases),
        ApiKeyRpcs(cases),
        EventRpcs(cases),
    )
    return RpcTable(
        SERVICE,
        [gated(SERVICE, part, cases.access) for part in parts],
        authenticate,
        not_yet=NOT_YET,
        observer=observer,
    )


__all__ = ["web_table"]
