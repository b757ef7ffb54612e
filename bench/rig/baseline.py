# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that does nothing, as the baseline of this machine."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio


class _Empty(grpc.GenericRpcHandler):
    """Answers every call with an empty message."""

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        return b""


async def _serve() -> None:
    limits = [(f"grpc.server.max_pending_requests{name}", 40_000) for name in ("", "_hard_limit")]
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), *limits])
    server.add_generic_rpc_handlers((_Empty(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


@contextmanager
def baseline_server() -> Iterator[str]:
    """Runs the server in a process and yields its address."""
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"127.0.0.1:{process.stdout.readline().strip() if process.stdout else ''}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve())
