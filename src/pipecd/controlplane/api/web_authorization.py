# SPDX-License-Identifier: Apache-2.0
"""Authorization of WebService by the RBAC options in its descriptor.

The permission of an RPC is checked before its request is decoded. The use cases check it again on
the object that is read or changed, with its labels.
"""

from collections.abc import Sequence

from google.protobuf.descriptor import MethodDescriptor

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.errors import Denied
from pipecd.proto.model import rbac_pb2
from pipecd.proto.service import web_pb2
from pipecd.wire.credentials import Metadata, session_cookie
from pipecd.wire.table import RpcObserver, RpcTable

SERVICE = web_pb2.DESCRIPTOR.services_by_name["WebService"]

# Upstream's descriptor has no option for these RPCs, so upstream denies them to everybody.
_CHAIN_PERMISSIONS = {
    "ListDeploymentChains": Permission(Resource.DEPLOYMENT_CHAIN, Action.LIST),
    "GetDeploymentChain": Permission(Resource.DEPLOYMENT_CHAIN, Action.GET),
}

ANY_ROLE = "any role"


def required_permission(rpc: MethodDescriptor) -> Permission | str | None:
    """The permission an RPC needs, ANY_ROLE, or None if nobody may call it."""
    options = rpc.GetOptions()
    if not options.HasExtension(rbac_pb2.rbac):
        return _CHAIN_PERMISSIONS.get(rpc.name)
    rule = options.Extensions[rbac_pb2.rbac]
    if rule.ignored:
        return ANY_ROLE
    return Permission(Resource(rule.resource), Action(rule.action))


class WebRpcTable(RpcTable[User]):
    """The RPCs of WebService for users with a session, each with the permission it needs."""

    def __init__(
        self, cases: UseCases, parts: Sequence[object], *, observer: RpcObserver | None = None
    ) -> None:
        self._access = cases.access
        self._required = {rpc.name: required_permission(rpc) for rpc in SERVICE.methods}

        async def authenticate(metadata: Metadata) -> User:
            return await cases.sessions.user(session_cookie(metadata))

        super().__init__(SERVICE, parts, authenticate, observer=observer)

    async def authorize(self, rpc: str, caller: User) -> None:
        match self._required.get(rpc):
            case Permission() as permission:
                await self._access.scope(caller, permission)
            case str():
                await self._access.require_any_role(caller)
            case None:
                raise Denied("Permission Denied")
