# SPDX-License-Identifier: Apache-2.0
"""Control planes of others: the RPCs of upstream's APIService that a test implements."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc.aio

from pipecd.proto.service.api_pb2_grpc import (
    APIServiceServicer,
    add_APIServiceServicer_to_server,
)


@asynccontextmanager
async def serve_api(servicer: APIServiceServicer | None = None) -> AsyncGenerator[str]:
    """Serves the RPCs of the servicer, which may be none, on a free port; yields the address."""
    server = grpc.aio.server()
    if servicer is not None:
        add_APIServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
