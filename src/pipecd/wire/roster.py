# SPDX-License-Identifier: Apache-2.0
"""Which method of which part answers which RPC of a service; gaps and doubles end the start."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

Method = Callable[[Any, Any], Awaitable[Message]]
StreamMethod = Callable[[Any, Any], AsyncIterator[Message]]


@dataclass(frozen=True)
class Unary:
    """An RPC with one answer."""

    name: str
    request_type: type[Message]
    response_type: type[Message]
    method: Method


@dataclass(frozen=True)
class Stream:
    """An RPC with many answers."""

    name: str
    request_type: type[Message]
    method: StreamMethod


def unary_rpcs(
    service: ServiceDescriptor, parts: Sequence[object], not_yet: frozenset[str]
) -> Mapping[str, Unary]:
    """Pairs every RPC of the descriptor with the one method that answers it."""
    methods = _methods_of(parts)
    declared = {rpc.name: rpc for rpc in service.methods if not rpc.server_streaming}
    faults = [
        *(f"{n} is missing" for n in sorted(declared.keys() - methods.keys() - not_yet)),
        *(f"{n} is not an RPC of the service" for n in sorted(methods.keys() - declared.keys())),
        *(f"{n} is in not_yet and is no RPC" for n in sorted(not_yet - declared.keys())),
        *(f"{n} is in not_yet and exists" for n in sorted(not_yet & methods.keys())),
        *(f"{n} is answered twice" for n in sorted(methods) if len(methods[n]) > 1),
        *(
            f"{n} is not an async method"
            for n in sorted(methods)
            if not all(inspect.iscoroutinefunction(m) for m in methods[n])
        ),
    ]
    if faults:
        raise TypeError(f"{service.full_name}: {'; '.join(faults)}")
    return {
        name: Unary(
            name=name,
            request_type=GetMessageClass(declared[name].input_type),
            response_type=GetMessageClass(declared[name].output_type),
            method=found[0],
        )
        for name, found in methods.items()
    }


def stream_rpcs(
    service: ServiceDescriptor, streams: Mapping[str, tuple[type[Message], StreamMethod]]
) -> Mapping[str, Stream]:
    """The streaming methods, those of the descriptor and those beside it."""
    for rpc in service.methods:
        if rpc.server_streaming and rpc.name not in streams:
            raise TypeError(f"{service.full_name}: {rpc.name} is missing in streams")
        if not rpc.server_streaming and rpc.name in streams:
            raise TypeError(f"{service.full_name}: {rpc.name} is an RPC with one answer")
    return {name: Stream(name, request, method) for name, (request, method) in streams.items()}


def _methods_of(parts: Sequence[object]) -> dict[str, list[Method]]:
    """The methods named like RPCs, that is in upper camel case."""
    found: dict[str, list[Method]] = {}
    for part in parts:
        for name in dir(part):
            if name[0].isupper() and callable(method := getattr(part, name)):
                found.setdefault(name, []).append(cast("Method", method))
    return found
