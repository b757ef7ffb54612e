# SPDX-License-Identifier: Apache-2.0
"""Sends calls that would have to queue in one request.

A push that changes a thousand applications makes a piped report the progress of hundreds of
deployments at once; what a gRPC call costs by itself is then half of the work on either side. A
call goes out at once if none is under way, so that a piped with little to do waits for nothing.
Otherwise it waits for a moment, or until none is under way, and all that wait share a request.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pipecd.model.errors import Unavailable
from pipecd.proto.service.batch_pb2 import (
    BatchedCall,
    BatchedResult,
    CallBatchRequest,
    CallBatchResponse,
)

ResponseT = TypeVar("ResponseT", bound=Message)

# Requests under way before others wait for them, however long that takes.
MAX_UNDER_WAY = 4
# How long a call waits for others to share a request with while one is under way, in seconds.
SHARING_SECONDS = 0.02
# What one request may carry.
MAX_CALLS, MAX_BYTES = 64, 256 * 1024

_CODES = {code.value[0]: code for code in grpc.StatusCode}

SendBatch = Callable[[CallBatchRequest, float], Awaitable[CallBatchResponse]]


@dataclass(frozen=True)
class QueuedCall:
    """A call that waits for its result."""

    call: BatchedCall
    deadline: float
    result: asyncio.Future[BatchedResult]


class CallBatcher:
    """Makes calls one by one, or several in one request if many are under way."""

    def __init__(self, send: SendBatch) -> None:
        self._send = send
        self._queue: deque[QueuedCall] = deque()
        self._under_way = 0
        # Runs while calls wait for others.
        self._timer: asyncio.TimerHandle | None = None
        # Upstream's control plane, and an older one of ours, has no batches.
        self._is_supported = True
        self._batches: set[asyncio.Task[None]] = set()

    async def call(
        self, request: Message, call_alone: Callable[[], Awaitable[ResponseT]], deadline: float
    ) -> ResponseT:
        """Returns the response; raises AioRpcError, also for a call that failed within a batch."""
        if not self._is_supported or not (self._under_way or self._queue):
            self._under_way += 1
            try:
                return await call_alone()
            finally:
                self._request_ended()
        name = type(request).__name__.removesuffix("Request")
        call = BatchedCall(rpc=name, request=request.SerializeToString())
        loop = asyncio.get_running_loop()
        queued = QueuedCall(call, deadline, loop.create_future())
        self._queue.append(queued)
        if len(self._queue) >= MAX_CALLS:
            self._send_queued()
        elif self._timer is None:
            self._timer = loop.call_later(SHARING_SECONDS, self._send_queued)
        result = await queued.result
        if result.code == grpc.StatusCode.UNIMPLEMENTED.value[0] and not self._is_supported:
            return await call_alone()
        if result.code:
            code = _CODES.get(result.code, grpc.StatusCode.UNKNOWN)
            raise grpc.aio.AioRpcError(
                code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=result.message
            )
        described = request.DESCRIPTOR.file.message_types_by_name[f"{name}Response"]
        response = GetMessageClass(cast("Descriptor", described))
        return cast("ResponseT", response.FromString(result.response))

    def _request_ended(self) -> None:
        self._under_way -= 1
        # Without a timer the calls have waited long enough.
        if not self._under_way or self._timer is None:
            self._send_queued()

    def _send_queued(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._under_way < MAX_UNDER_WAY:
            self._under_way += 1
            task = asyncio.create_task(self._send_batch(self._next_batch()), name="batch of calls")
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)

    def _next_batch(self) -> list[QueuedCall]:
        batch: list[QueuedCall] = []
        size = 0
        while self._queue and len(batch) < MAX_CALLS:
            size += len(self._queue[0].call.request)
            if batch and size > MAX_BYTES:
                break
            queued = self._queue.popleft()
            # The task of a call may have been cancelled while it waited.
            if not queued.result.done():
                batch.append(queued)
        return batch

    async def _send_batch(self, batch: Sequence[QueuedCall]) -> None:
        try:
            for queued, result in zip(batch, await self._results(batch), strict=True):
                if not queued.result.done():
                    queued.result.set_result(result)
        except Exception as e:  # noqa: BLE001 The tasks that wait raise it, a bug too.
            for queued in batch:
                if not queued.result.done():
                    queued.result.set_exception(e)
        finally:
            for queued in batch:
                queued.result.cancel()
            self._request_ended()

    async def _results(self, batch: Sequence[QueuedCall]) -> Sequence[BatchedResult]:
        """Returns a result for each call; an error of the request is the error of every call."""
        if not batch:
            return ()
        request = CallBatchRequest(calls=[queued.call for queued in batch])
        try:
            response = await self._send(request, max(queued.deadline for queued in batch))
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._is_supported = False
            return [BatchedResult(code=e.code().value[0], message=e.details() or "")] * len(batch)
        if len(response.results) != len(batch):
            raise Unavailable("the control plane returned another number of results than calls")
        return response.results
