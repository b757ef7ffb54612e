# SPDX-License-Identifier: Apache-2.0
"""Blocking calls in threads: a cancelled caller waits for them, and their errors are nobody's surprise."""

import asyncio
import gc
from typing import Any

import pytest

from pipecd.program.threads import wait_until_done


@pytest.mark.parametrize("cancellations", [1, 2])
async def test_the_error_of_a_call_whose_caller_was_cancelled_is_not_logged_as_unhandled(
    cancellations: int,
) -> None:
    loop, unhandled = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    call: asyncio.Future[None] = loop.create_future()
    caller = asyncio.create_task(wait_until_done(call))
    for _ in range(cancellations):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.wait({caller}, timeout=0.01)
    call.set_exception(OSError("the bucket does not answer"))
    await asyncio.wait({caller})
    assert caller.cancelled()
    del call, caller
    gc.collect()
    assert unhandled == []
