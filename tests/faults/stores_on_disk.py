# SPDX-License-Identifier: Apache-2.0
"""Databases and a bucket whose data is on a small disk, and the servers that they fail over to."""

import os
import pwd
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from faults.disk import SmallDisk, mounted
from servers.databases import MariaDb, Postgres, Redis
from servers.objects import GcsOnDisk
from servers.server import START_SECONDS, Server, run

_DATABASE_MEGABYTES, _BUCKET_MEGABYTES = 600, 200


class OnSmallDisk(Server):
    """A server that loses its disk space when a test says so; only root can give it such a disk."""

    megabytes = _DATABASE_MEGABYTES
    disk: SmallDisk | None = None

    def mount(self) -> None:
        self.disk = mounted(self.data, megabytes=self.megabytes)
        if self.disk is not None and self.user and os.getuid() == 0:
            shutil.chown(self.data, self.user, pwd.getpwnam(self.user).pw_gid)
            self.data.chmod(0o700)

    def close(self) -> None:
        self.stop()
        if self.disk is not None:
            self.disk.unmount()
        super().close()


class PostgresOnSmallDisk(OnSmallDisk, Postgres):
    """PostgreSQL that keeps its log short."""

    user = Postgres.user

    def prepare(self) -> None:
        self.mount()
        super().prepare()

    def command(self) -> Sequence[str]:
        settings = ("max_wal_size=96MB", "min_wal_size=32MB", "wal_retrieve_retry_interval=200ms")
        return [*super().command(), *(word for each in settings for word in ("-c", each))]


class Standby(PostgresOnSmallDisk):
    """A copy of a server that follows it, until it takes its place."""

    def __init__(self, primary: Postgres) -> None:
        self.primary = primary
        super().__init__()

    def prepare(self) -> None:
        self.mount()
        program = str(Path(self.program).resolve().with_name("pg_basebackup"))
        source = ("-h", "127.0.0.1", "-p", str(self.primary.port), "-U", "postgres")
        options = ("-D", str(self.data), "--write-recovery-conf", "--checkpoint=fast")
        run(*self.as_unprivileged_user([program, *source, *options]))

    def await_synchronous(self) -> None:
        """From then on the primary acknowledges only what this standby has, too."""
        with psycopg.connect(self.primary.url("postgres"), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            end = time.monotonic() + START_SECONDS
            query = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            while connection.execute(query).fetchone() is None:
                if time.monotonic() > end:
                    raise RuntimeError("the standby does not follow its primary")
                time.sleep(0.05)

    def promote(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


class MariaDbOnSmallDisk(OnSmallDisk, MariaDb):
    """MariaDB whose disk can be filled."""

    user = MariaDb.user

    def prepare(self) -> None:
        self.mount()
        super().prepare()


class MariaDbOfStorage(MariaDbOnSmallDisk):
    """A server that starts with the storage of another one, which has ended."""

    def __init__(self, ended: MariaDb) -> None:
        self.ended = ended
        super().__init__()

    def prepare(self) -> None:
        self.mount()
        run("cp", "--archive", f"{self.ended.data}/.", str(self.data))


class ReplicaOfRedis(Redis):
    """A copy of a cache that follows it, until it takes its place."""

    is_promoted = False

    def __init__(self, primary: Redis) -> None:
        self.primary = primary
        super().__init__()

    def command(self) -> Sequence[str]:
        follow = ("--replicaof", "127.0.0.1", str(self.primary.port))
        return [*super().command(), *(() if self.is_promoted else follow)]

    def await_link(self) -> None:
        """From then on it has what the primary has."""
        end = time.monotonic() + START_SECONDS
        while "master_link_status:up" not in self.ask("INFO replication"):
            if time.monotonic() > end:
                raise RuntimeError("the replica does not follow its primary")
            time.sleep(0.05)

    def ask(self, request: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(f"{request}\r\n".encode())
            return connection.recv(1 << 16).decode()


def promoted_standby(primary: Postgres) -> Postgres:
    """Kills a server after a synchronous standby has all of its data, which takes its place."""
    standby = Standby(primary)
    try:
        standby.await_synchronous()
        primary.stop()
        standby.promote()
    except BaseException:
        standby.close()
        raise
    return standby


def promoted_replica(primary: Redis) -> Redis:
    """Kills a cache after a replica has followed it, which takes its place."""
    replica = ReplicaOfRedis(primary)
    try:
        replica.await_link()
        primary.stop()
        replica.ask("REPLICAOF NO ONE")
        replica.is_promoted = True
    except BaseException:
        replica.close()
        raise
    return replica


class BucketOnSmallDisk(OnSmallDisk, GcsOnDisk):
    """A bucket whose disk can be filled and made read-only."""

    megabytes = _BUCKET_MEGABYTES

    def prepare(self) -> None:
        self.data.mkdir()
        self.mount()


class BucketOfStorage(BucketOnSmallDisk):
    """A server that starts with the objects of another one, which has ended."""

    def __init__(self, ended: GcsOnDisk) -> None:
        self.ended = ended
        super().__init__()

    def prepare(self) -> None:
        super().prepare()
        run("cp", "--archive", f"{self.ended.data}/.", str(self.data))
