# SPDX-License-Identifier: Apache-2.0
"""The version of piped that the control plane desires, and a watch for its changes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass

import grpc.aio
import structlog

from pipecd.launcher.identity import Identity
from pipecd.model.backoff import STREAM_UNSUPPORTED_RETRY_SECONDS
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.observe.version import build_version
from pipecd.proto.service.piped_pb2 import GetDesiredVersionRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.channel import open_channel, watch_wakeups
from pipecd.wire.credentials import piped_token
from pipecd.wire.status import from_rpc_error

_TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True)
class DesiredVersion:
    """Reads the desired version; `default` is used when the control plane has none."""

    insecure: bool = False
    cert_file: str = ""
    default: str = ""

    async def version(self, piped: Identity) -> str:
        """Returns the version of the control plane, of the flag, or that of the launcher."""
        async with self._channel(piped) as channel:
            call = PipedServiceStub(channel).GetDesiredVersion
            try:
                response = await call(GetDesiredVersionRequest(), timeout=_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as e:
                raise from_rpc_error(e) from e
        return response.version or self.default or build_version()

    async def changes(self, piped: Identity) -> AsyncGenerator[None]:
        """Yields whenever another version may be desired, until the stream ends or fails.

        An upstream control plane has no such stream, which is Unsupported.
        """
        async with self._channel(piped) as channel:
            try:
                async for wakeup in watch_wakeups(channel)(WatchWakeupsRequest()):
                    if wakeup.kind in (Wakeup.CONNECTED, Wakeup.PIPED):
                        yield
            except grpc.aio.AioRpcError as e:
                raise from_rpc_error(e) from e

    def _channel(self, piped: Identity) -> AbstractAsyncContextManager[grpc.aio.Channel]:
        return open_channel(
            piped.address,
            authorization=piped_token(piped.project, piped.piped, piped.key),
            insecure=self.insecure,
            cert_file=self.cert_file,
        )


log = structlog.get_logger()

_RETRY_SECONDS = 30.0


class DesiredVersionWatcher:
    """Requests a check of the launcher as soon as the desired version may have changed."""

    def __init__(
        self,
        piped: Callable[[], Awaitable[Identity]],
        changes: Callable[[Identity], AsyncGenerator[None]],
        on_change: Callable[[], None],
        *,
        pause: float = _RETRY_SECONDS,
    ) -> None:
        self._piped, self._changes, self._on_change, self._pause = piped, changes, on_change, pause

    async def run(self) -> None:
        while True:
            pause = self._pause
            try:
                # A new configuration may name another piped.
                async with aclosing(self._changes(await self._piped())) as changes:
                    async for _ in changes:
                        self._on_change()
            except Unsupported:
                pause = STREAM_UNSUPPORTED_RETRY_SECONDS
            except PipecdError as e:
                log.debug(
                    "desired version cannot be watched, polling at every check interval",
                    error=str(e),
                )
            await asyncio.sleep(pause)
