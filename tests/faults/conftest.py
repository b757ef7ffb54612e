# SPDX-License-Identifier: Apache-2.0
"""The two installations that faults are tried on."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from faults.installation import FaultyInstallation, open_installation
from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from servers.databases import Postgres, Redis

OpenInstallation = Callable[..., AbstractAsyncContextManager[FaultyInstallation]]


@pytest.fixture
def open_replicas(tmp_path: Path, postgres: Postgres, redis: Redis) -> OpenInstallation:
    """Opens an installation of two replicas on PostgreSQL and Redis."""

    @asynccontextmanager
    async def opened(*applications: str) -> AsyncGenerator[FaultyInstallation, None]:
        name = f"faults_{uuid4().hex}"
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        async with open_installation(
            tmp_path,
            applications=applications or ("cart",),
            datastore=DatastoreSpec(
                type="POSTGRESQL",
                config=DatastoreConfig(url=postgres.url(name).rpartition("/")[0], database=name),
            ),
            cache_address=f"127.0.0.1:{redis.port}",
            replica_count=2,
        ) as installed:
            yield installed

    return opened
