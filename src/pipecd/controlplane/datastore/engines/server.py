# SPDX-License-Identifier: Apache-2.0
"""What MySQL and PostgreSQL have in common: servers that may be away, full or deny access."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy.pool import QueuePool

from pipecd.controlplane.datastore.database import Collision, ConnectionLost
from pipecd.model.errors import PipecdError, StorageUnavailable, Unavailable, UserMistake

T = TypeVar("T")

log = structlog.get_logger()

READERS, WRITERS = 4, 8
# Older connections are replaced: firewalls drop idle ones, and a failover leaves old ones open.
RECYCLE_SECONDS = 240
# How long no new connection is attempted after a failed one, in seconds.
CONNECT_BACKOFF = 0.5
# How long the control plane waits at startup for its database, and how often it retries.
WAIT_SECONDS = 60.0
RETRY_SECONDS = 1.0


class ConnectBackoff:
    """Fails connection attempts at once for a short time after one has failed."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._retry_at = 0.0
        self._failure = ""

    def check(self) -> None:
        """Raises StorageUnavailable during the backoff."""
        with self._lock:
            if self._clock() < self._retry_at:
                raise StorageUnavailable(self._failure)

    def failed(self, error: PipecdError) -> StorageUnavailable:
        """Starts the backoff; returns the error for the caller."""
        with self._lock:
            self._retry_at = self._clock() + CONNECT_BACKOFF
            self._failure = error.message
        return StorageUnavailable(error.message, hint=error.hint)

    def reset(self) -> None:
        """Ends the backoff: a connection was opened."""
        with self._lock:
            self._retry_at = 0.0


def create_pool(connect: Callable[[], Any], backoff: ConnectBackoff) -> QueuePool:
    """Creates a pool with one connection per thread; the most recently used one is taken first."""

    def connect_with_backoff() -> Any:
        backoff.check()
        try:
            connection = connect()
        except PipecdError as e:
            raise backoff.failed(e) from e
        backoff.reset()
        return connection

    return QueuePool(
        connect_with_backoff,
        pool_size=READERS + WRITERS,
        max_overflow=0,
        recycle=RECYCLE_SECONDS,
        use_lifo=True,
        reset_on_return=None,
    )


async def wait_until_ready(prepare: Callable[[], T], *, wait: float | None = None) -> T:
    """Returns the result of `prepare`; retries it until the server answers or the time is up."""
    end = time.monotonic() + (WAIT_SECONDS if wait is None else wait)
    while True:
        try:
            return await asyncio.to_thread(prepare)
        except (ConnectionLost, Collision, Unavailable) as e:
            if time.monotonic() + RETRY_SECONDS > end:
                if isinstance(e, Unavailable):
                    raise
                raise Unavailable(f"the database cannot be prepared: {e}") from e
            log.warning("database not ready, retrying", error=str(e), seconds=RETRY_SECONDS)
        await asyncio.sleep(RETRY_SECONDS)


def read_secret(path: str, key: str) -> str:
    """The text of the file without its final line break; `key` names the setting in errors."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not a text file"
        raise UserMistake(
            f"cannot read the file {path}: {reason}", hint=f"check {key} of the datastore"
        ) from e
    return text.rstrip("\r\n")


def out_of_space(text: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the database is out of space or connections: {text}", hint="check its disk and limits"
    )


def not_permitted(text: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the database denies permission: {text}", hint="check the privileges of its user"
    )


def cannot_hold(text: str) -> UserMistake:
    return UserMistake(f"the database cannot hold this: {text}")


def statement_timeout(_text: str) -> StorageUnavailable:
    return StorageUnavailable("the database took too long to answer", hint="try again later")


def access_denied(name: str, text: str) -> UserMistake:
    return UserMistake(
        f"access to the database {name} is denied: {text}",
        hint="check the user, the password and the name of the database",
    )


def unreachable(name: str, text: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"the database {name} cannot be reached: {text}",
        hint="check that the server runs and that the address is right",
    )
