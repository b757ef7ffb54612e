# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a process and of the database server that works for it."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.engines.mysql import connect, mysql_address


class Taken(NamedTuple):
    """Milliseconds of CPU time, with that of the database, and of the clock."""

    cpu: float
    clock: float


def cpu_clock(datastore: DatastoreSpec, pid: int = 0) -> Callable[[], float]:
    """Returns a clock of the seconds that a process, by default this one, and the database used."""
    of_process = partial(process_seconds, pid or os.getpid())
    match datastore.type:
        case "POSTGRESQL":
            connection = psycopg.connect(datastore.config.url, autocommit=True)

            def backends() -> list[int]:
                rows = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid()"
                )
                return [pid for (pid,) in rows.fetchall()]

            return lambda: of_process() + sum(map(process_seconds, backends()))
        case "MYSQL":
            mysql: Any = connect(mysql_address(datastore.config))
            cursor = mysql.cursor()
            cursor.execute("SELECT @@datadir, @@pid_file")
            ((directory, pid_file),) = cursor.fetchall()
            server = int((Path(directory) / pid_file).read_text())
            return lambda: of_process() + process_seconds(server)
        case _:
            return of_process


def process_seconds(pid: int) -> float:
    """The CPU time of a process with all its threads; 0 if it has ended."""
    # The clock of another process, as clock_getcpuclockid(3) numbers it.
    with suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0
