# SPDX-License-Identifier: Apache-2.0
"""Waiting for a server that starts later than we do."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from pipecd.controlplane.datastore.engine.link import Collided, Lost
from pipecd.model.errors import Unavailable

T = TypeVar("T")

log = structlog.get_logger()

WAIT_SECONDS = 60.0
PAUSE = 1.0


async def in_the_end(prepare: Callable[[], T], *, wait: float | None = None) -> T:
    """The result of the preparation, which is tried until the server answers or time is up."""
    end = time.monotonic() + (WAIT_SECONDS if wait is None else wait)
    while True:
        try:
            return await asyncio.to_thread(prepare)
        except (Lost, Collided, Unavailable) as e:
            if time.monotonic() + PAUSE > end:
                if isinstance(e, Unavailable):
                    raise
                raise Unavailable(f"the database cannot be prepared: {e}") from e
            log.warning("database not ready, waiting for it", error=str(e))
        await asyncio.sleep(PAUSE)
