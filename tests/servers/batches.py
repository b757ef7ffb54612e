# SPDX-License-Identifier: Apache-2.0
"""Makes each call of a batch on its own, so that tests can refuse, hold and count single calls."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from pipecd.proto.service.batch_pb2 import (
    BatchedCall,
    BatchedResult,
    CallBatchRequest,
    CallBatchResponse,
)

BATCH = "CallBatch"


@dataclass(frozen=True)
class _CallDetails(grpc.HandlerCallDetails):
    """How a call of a batch looks to a handler."""

    method: str
    invocation_metadata: Any


@dataclass(frozen=True)
class _Aborted(Exception):
    """A call of a batch that ended with an error."""

    code: grpc.StatusCode
    details: str


@dataclass(frozen=True)
class _CallContext:
    """The context of a call of a batch."""

    context: Any

    def invocation_metadata(self) -> Any:
        return self.context.invocation_metadata()

    def peer(self) -> str:
        return self.context.peer()

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise _Aborted(code, details)


def each_call(
    service: Callable[[grpc.HandlerCallDetails], Any], details: grpc.HandlerCallDetails
) -> Any:
    """Returns the handler of a batch that makes each of its calls with the handler of that call."""
    prefix = details.method.rpartition("/")[0]

    async def result(call: BatchedCall, context: Any) -> BatchedResult:
        handler = service(_CallDetails(f"{prefix}/{call.rpc}", details.invocation_metadata))
        if handler is None or handler.unary_unary is None:
            return BatchedResult(code=grpc.StatusCode.UNIMPLEMENTED.value[0])
        try:
            response = await handler.unary_unary(call.request, _CallContext(context))
        except _Aborted as e:
            return BatchedResult(code=e.code.value[0], message=e.details)
        return BatchedResult(response=response)

    async def serve(request: bytes, context: Any) -> bytes:
        calls = CallBatchRequest.FromString(request).calls
        results = await asyncio.gather(*(result(call, context) for call in calls))
        return CallBatchResponse(results=results).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(serve)  # type: ignore[arg-type]
