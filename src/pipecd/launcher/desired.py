# SPDX-License-Identifier: Apache-2.0
"""Asks the control plane which version of piped should run, and hears when that changes."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import grpc.aio

from pipecd.launcher.identity import Identity
from pipecd.observe.version import build_version
from pipecd.proto.service.piped_pb2 import GetDesiredVersionRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.channel import open_channel, watch_wakeups
from pipecd.wire.credentials import piped_token
from pipecd.wire.status import from_rpc_error

_WITHIN = 15.0


@dataclass(frozen=True)
class Desired:
    """How the control plane is reached, and the version for the case that it names none."""

    insecure: bool = False
    cert_file: str = ""
    default: str = ""

    async def version(self, piped: Identity) -> str:
        """The version that is desired: there, on the command line, or that of the launcher."""
        async with self._channel(piped) as channel:
            call = PipedServiceStub(channel).GetDesiredVersion
            try:
                answer = await call(GetDesiredVersionRequest(), timeout=_WITHIN)
            except grpc.aio.AioRpcError as e:
                raise from_rpc_error(e) from e
        return answer.version or self.default or build_version()

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
