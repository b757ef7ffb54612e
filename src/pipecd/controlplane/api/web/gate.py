# SPDX-License-Identifier: Apache-2.0
"""What the descriptor of WebService says about who may call an RPC.

It is asked before the request is read, so whoever may not send it learns that first. The use cases
check the permission again on the very thing that is touched, with its labels.
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

# Upstream gives these no rule and therefore refuses them to everybody.
_OURS = {
    "ListDeploymentChains": Permission(Resource.DEPLOYMENT_CHAIN, Action.LIST),
    "GetDeploymentChain": Permission(Resource.DEPLOYMENT_CHAIN, Action.GET),
}

ANY_ROLE = "any role"


def rule_of(rpc: MethodDescriptor) -> Permission | str | None:
    """The permission an RPC needs, ANY_ROLE, or None when nobody may call it."""
    options = rpc.GetOptions()
    if not options.HasExtension(rbac_pb2.rbac):
        return _OURS.get(rpc.name)
    rule = options.Extensions[rbac_pb2.rbac]
    if rule.ignored:
        return ANY_ROLE
    return Permission(Resource(rule.resource), Action(rule.action))


class WebTable(RpcTable[User]):
    """WebService for people with a session, each RPC behind the rule of its descriptor."""

    def __init__(
        self,
        cases: UseCases,
        parts: Sequence[object],
        *,
        not_yet: frozenset[str] = frozenset(),
        observer: RpcObserver | None = None,
    ) -> None:
        self._access = cases.access
        self._rules = {rpc.name: rule_of(rpc) for rpc in SERVICE.methods}

        async def authenticate(metadata: Metadata) -> User:
            return await cases.sessions.person(session_cookie(metadata))

        super().__init__(SERVICE, parts, authenticate, not_yet=not_yet, observer=observer)

    async def admit(self, rpc: str, caller: User) -> None:
        match self._rules.get(rpc):
            case Permission() as rule:
                await self._access.scope(caller, rule)
            case str():
                await self._access.require_any_role(caller)
            case None:
                raise Denied("Permission Denied")
