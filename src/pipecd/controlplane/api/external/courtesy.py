# SPDX-License-Identifier: Apache-2.0
"""The codes that clients of APIService expect for things of another project."""

from collections.abc import Awaitable, Callable
from functools import wraps
from types import SimpleNamespace

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.usecases.access import Foreign
from pipecd.model.errors import UserMistake

Method = Callable[[Message, ApiKeyCaller], Awaitable[Message]]

# Clients of upstream see PERMISSION_DENIED from these and INVALID_ARGUMENT from all others.
STAY_DENIED = frozenset(
    {
        "RenameApplicationConfigFile",
        "UpdateApplicationDeployTargets",
        "UpdatePiped",
        "EnablePiped",
        "DisablePiped",
        "GetPlanPreviewResults",
    }
)


def as_mistakes(service: ServiceDescriptor, part: object) -> object:
    """The part with its RPCs answering a foreign thing as the caller's mistake."""
    methods = {
        rpc.name: _as_mistake(method) if rpc.name not in STAY_DENIED else method
        for rpc in service.methods
        if (method := getattr(part, rpc.name, None)) is not None
    }
    return SimpleNamespace(**methods)


def _as_mistake(method: Method) -> Method:
    @wraps(method)
    async def answer(request: Message, caller: ApiKeyCaller) -> Message:
        try:
            return await method(request, caller)
        except Foreign as e:
            raise UserMistake(e.message) from e

    return answer
