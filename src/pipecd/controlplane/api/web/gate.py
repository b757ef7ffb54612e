# SPDX-License-Identifier: Apache-2.0
"""What the descriptor of WebService says about who may call an RPC.

The use cases check the permission again on the very thing that is touched, with its labels.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from types import SimpleNamespace

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.usecases.access import Access
from pipecd.model.errors import Denied
from pipecd.proto.model import rbac_pb2

Method = Callable[[Message, Person], Awaitable[Message]]

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


def gated(service: ServiceDescriptor, part: object, access: Access) -> object:
    """The part with every RPC behind the rule of its descriptor."""
    methods = {
        rpc.name: _behind(rule_of(rpc), method, access)
        for rpc in service.methods
        if (method := getattr(part, rpc.name, None)) is not None
    }
    return SimpleNamespace(**methods)


def _behind(rule: Permission | str | None, method: Method, access: Access) -> Method:
    @wraps(method)
    async def answer(request: Message, caller: Person) -> Message:
        match rule:
            case Permission():
                await access.scope(caller, rule)
            case str():
                await access.require_any_role(caller)
            case None:
                raise Denied("Permission Denied")
        return await method(request, caller)

    return answer
