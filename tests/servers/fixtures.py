# SPDX-License-Identifier: Apache-2.0
"""Servers that several rooms are tested against, started once and only when a test asks."""

import os
from collections.abc import Iterator
from typing import TypeVar

import pytest

from servers.databases import Dolt, MariaDb, NotInstalled, Postgres, Redis, Server

S = TypeVar("S", bound=Server)


def running(kind: type[S]) -> Iterator[S]:
    try:
        server = kind()
    except NotInstalled as e:
        told = f"{e}: apt-get install {kind.package}"
        if os.environ.get("CI") == "true":
            pytest.fail(told)
        pytest.skip(told)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    yield from running(MariaDb)


@pytest.fixture(scope="session")
def dolt() -> Iterator[Dolt]:
    yield from running(Dolt)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    yield from running(Postgres)


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    yield from running(Redis)
