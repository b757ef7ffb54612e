# SPDX-License-Identifier: Apache-2.0
"""The door for gRPC-Web clients: WebService, one module per noun."""

from pipecd.controlplane.api.web.api_keys import ApiKeyRpcs
from pipecd.controlplane.api.web.applications import ApplicationRpcs
from pipecd.controlplane.api.web.deployments import DeploymentRpcs
from pipecd.controlplane.api.web.events import EventRpcs
from pipecd.controlplane.api.web.gate import SERVICE, WebTable
from pipecd.controlplane.api.web.insights import InsightRpcs
from pipecd.controlplane.api.web.pipeds import PipedRpcs
from pipecd.controlplane.api.web.projects import ProjectRpcs
from pipecd.controlplane.api.web.releases import ReleaseRpcs
from pipecd.controlplane.api.web.roles import RoleRpcs
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.wire.table import RpcObserver, RpcTable


def web_table(cases: UseCases, *, observer: RpcObserver | None = None) -> RpcTable[User]:
    """WebService for people with a session."""

    parts = (
        ApplicationRpcs(cases),
        DeploymentRpcs(cases),
        PipedRpcs(cases),
        ProjectRpcs(cases),
        RoleRpcs(cases),
        ApiKeyRpcs(cases),
        EventRpcs(cases),
        InsightRpcs(cases),
        ReleaseRpcs(),
    )
    return WebTable(cases, parts, observer=observer)


__all__ = ["SERVICE", "web_table"]
