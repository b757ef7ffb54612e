# SPDX-License-Identifier: Apache-2.0
"""The connection to a plugin while its program starts."""

import asyncio

from pipecd.sdk.serving import is_serving, local_channel

# With the backoff that gRPC has by default, which doubles from a second, these take half a minute.
ATTEMPTS = 7


async def test_a_program_that_starts_slowly_is_tried_again_every_second() -> None:
    attempts: asyncio.Queue[None] = asyncio.Queue()

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.put_nowait(None)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with local_channel(f"127.0.0.1:{port}") as channel:
            starting = asyncio.ensure_future(is_serving(channel, 60))
            async with asyncio.timeout(15):
                for _ in range(ATTEMPTS):
                    await attempts.get()
            starting.cancel()
