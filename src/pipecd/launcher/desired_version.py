# SPDX-License-Identifier: Apache-2.0
"""The version of piped that the control plane desires, and a watch for its changes."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass

import grpc
import grpc.aio
import structlog

from pipecd.launcher.identity import Identity
from pipecd.model.backoff import STREAM_UNSUPPORTED_RETRY_SECONDS, Backoff
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.observe.version import build_version
from pipecd.proto.service.piped_pb2 import GetDesiredVersionRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.channel import HEARTBEAT_SECONDS, open_channel, read_wakeups, watch_wakeups
from pipecd.wire.credentials import piped_key_refused, piped_token
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
                if e.code() is grpc.StatusCode.UNAUTHENTICATED:
                    raise piped_key_refused() from e
                raise from_rpc_error(e) from e
        return response.version or self.default or build_version()

    async def changes(self, piped: Identity) -> AsyncGenerator[None]:
        """Yields whenever another version may be desired, until the stream ends or fails.

        A stream whose heartbeats stop fails. An upstream control plane has no such stream, which is
        Unsupported.
        """
        # What is wrong is logged by the checks, which read the version.
        async with self._channel(piped, is_quiet=True) as channel:
            request = WatchWakeupsRequest(heartbeat_seconds=HEARTBEAT_SECONDS)
            try:
                async with aclosing(read_wakeups(watch_wakeups(channel)(request))) as wakeups:
                    async for wakeup in wakeups:
                        if wakeup.kind in (Wakeup.CONNECTED, Wakeup.PIPED):
                            yield
            except grpc.aio.AioRpcError as e:
                raise from_rpc_error(e) from e

    def _channel(
        self, piped: Identity, *, is_quiet: bool = False
    ) -> AbstractAsyncContextManager[grpc.aio.Channel]:
        return open_channel(
            piped.address,
            authorization=piped_token(piped.project, piped.piped, piped.key),
            insecure=self.insecure,
            cert_file=self.cert_file,
            is_quiet=is_quiet,
        )


log = structlog.get_logger()

_BACKOFF = Backoff(first=1.0, longest=10.0)


class DesiredVersionWatcher:
    """Requests a check of the launcher as soon as the desired version may have changed."""

    def __init__(
        self,
        piped: Callable[[], Awaitable[Identity]],
        changes: Callable[[Identity], AsyncGenerator[None]],
        on_change: Callable[[], None],
        *,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._piped, self._changes, self._on_change = piped, changes, on_change
        self._backoff = backoff

    async def run(self) -> None:
        failures = 0
        while True:
            failures += 1
            pause = 0.0
            try:
                # A new configuration may name another piped.
                async with aclosing(self._changes(await self._piped())) as changes:
                    async for _ in changes:
                        failures = 1
                        self._on_change()
            except Unsupported:
                pause = STREAM_UNSUPPORTED_RETRY_SECONDS
            except PipecdError as e:
                log.debug(
                    "desired version cannot be watched, polling at every check interval",
                    error=str(e),
                )
            jitter = random.uniform(0.5, 1)  # noqa: S311
            await asyncio.sleep(pause or self._backoff.after(failures) * jitter)
