# SPDX-License-Identifier: Apache-2.0
"""The connection pool: backoff while the server is unreachable, and recycling by age."""

import pytest

from pipecd.controlplane.datastore.engines.server import (
    CONNECT_BACKOFF,
    ConnectBackoff,
    create_pool,
)
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake


class FakeServer:
    """Accepts connections unless `error` is set; the test advances its clock."""

    def __init__(self) -> None:
        self.attempts = 0
        self.error: Exception | None = None
        self.seconds = 0.0
        self.pool = create_pool(self.connect, ConnectBackoff(clock=lambda: self.seconds))

    def connect(self) -> "FakeConnection":
        self.attempts += 1
        if self.error is not None:
            raise self.error
        return FakeConnection()


class FakeConnection:
    """A connection without a server."""

    def close(self) -> None:
        """Does nothing."""


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def test_no_connection_is_attempted_during_the_backoff(server: FakeServer) -> None:
    server.error = Unavailable("no route")
    for _ in range(5):
        with pytest.raises(StorageUnavailable, match="no route"):
            server.pool.connect()
    assert server.attempts == 1
    server.seconds += CONNECT_BACKOFF
    server.error = None
    server.pool.connect().close()
    assert server.attempts == 2


def test_a_rejected_password_is_reported_as_unavailable_storage(server: FakeServer) -> None:
    server.error = UserMistake("wrong password")
    with pytest.raises(StorageUnavailable, match="wrong password"):
        server.pool.connect()


def test_the_pool_reuses_a_connection(server: FakeServer) -> None:
    first = server.pool.connect()
    driver_connection = first.driver_connection
    first.close()
    assert server.pool.connect().driver_connection is driver_connection
