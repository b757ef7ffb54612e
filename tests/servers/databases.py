# SPDX-License-Identifier: Apache-2.0
"""MariaDB, PostgreSQL and Redis on loopback, each with its data in a directory of its own."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

START_SECONDS = 40


class NotInstalled(Exception):
    """The program of a server is missing on this machine."""


class Server(ABC):
    """A server program that can be stopped, started again and made to hang."""

    package: str
    user = ""

    def __init__(self) -> None:
        self.program = self.find_program()
        self.directory = Path(tempfile.mkdtemp(prefix="pipecd-test-"))
        self.data = self.directory / "data"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self.user and os.getuid() == 0:
            shutil.chown(self.directory, self.user, pwd.getpwnam(self.user).pw_gid)
        self.prepare()
        self.start()

    @abstractmethod
    def find_program(self) -> str: ...

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def is_up(self) -> bool: ...

    def prepare(self) -> None:
        """Creates what the first start needs."""
        self.data.mkdir()

    def start(self) -> None:
        log = self.directory / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self.as_its_user(self.command()),
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while not self.is_up():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.program} does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends the server as a power cut would, but keeps what it has written."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """To the server and to all that it has started, which may have left its group."""
        if self._process is not None:
            for process in (self._process.pid, *children(self._process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def as_its_user(self, command: Sequence[str]) -> Sequence[str]:
        """Servers refuse to be root, and none of them may outlive the tests."""
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            return command
        change: list[str] = []
        if self.user and os.getuid() == 0:
            change = [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return [setpriv, *change, "--pdeathsig=KILL", *command]

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


class MariaDb(Server):
    """MariaDB with a user root without a password."""

    package = "mariadb-server"
    user = "mysql"

    def find_program(self) -> str:
        return find("mariadbd", "/usr/sbin")

    def prepare(self) -> None:
        install = find("mariadb-install-db", "/usr/bin")
        user = ["--user=mysql"] if os.getuid() == 0 else []
        run(
            install,
            "--no-defaults",
            *user,
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def command(self) -> Sequence[str]:
        return [
            self.program,
            "--no-defaults",
            f"--datadir={self.data}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.directory}/s.sock",
            "--skip-log-bin",
            "--skip-name-resolve",
            # What is written survives the end of the process; a test cuts no power.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-buffer-pool-size=32M",
        ]

    def is_up(self) -> bool:
        import pymysql

        with suppress(pymysql.Error, OSError):
            pymysql.connect(host="127.0.0.1", port=self.port, user="root").close()
            return True
        return False


class Dolt(Server):
    """Dolt, which speaks the dialect of MySQL 8, with a user root without a password."""

    package = "(built from its Go module)"

    def find_program(self) -> str:
        return find("dolt")

    def prepare(self) -> None:
        super().prepare()
        for key, value in {
            "user.name": "t",
            "user.email": "t@t",
            "metrics.disabled": "true",
        }.items():
            run(*self.at_home("config", "--global", "--add", key, value))

    def command(self) -> Sequence[str]:
        listen = ("-H", "127.0.0.1", "-P", str(self.port))
        return self.at_home("sql-server", *listen, "--data-dir", str(self.data))

    def at_home(self, *arguments: str) -> Sequence[str]:
        return ["env", f"HOME={self.directory}", self.program, *arguments]

    def is_up(self) -> bool:
        return self.answers()


class Postgres(Server):
    """PostgreSQL with a user postgres without a password."""

    package = "postgresql"
    user = "postgres"

    def find_program(self) -> str:
        return find("postgres", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin"))))

    def prepare(self) -> None:
        initdb = str(Path(self.program).resolve().with_name("initdb"))
        run(
            *self.as_its_user(
                [initdb, "-D", str(self.data), "-A", "trust", "-N", "-E", "UTF8", "-U", "postgres"]
            )
        )

    def command(self) -> Sequence[str]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "shared_buffers": "32MB",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [self.program, "-D", str(self.data), *options]

    def start(self) -> None:
        # Left behind by a server that was killed.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        super().start()

    def is_up(self) -> bool:
        import psycopg

        with suppress(psycopg.Error):
            psycopg.connect(self.url("postgres")).close()
            return True
        return False

    def url(self, database: str) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"


class Redis(Server):
    """Redis that remembers nothing after its end."""

    package = "redis-server"

    def find_program(self) -> str:
        return find("redis-server", "/usr/bin")

    def command(self) -> Sequence[str]:
        return [
            self.program,
            *("--port", str(self.port)),
            *("--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no"),
            *("--dir", str(self.directory)),
        ]

    def is_up(self) -> bool:
        return self.answers()


def find(program: str, *places: str) -> str:
    found = shutil.which(program) or next(
        (w for place in reversed(places) if (w := shutil.which(program, path=place))), None
    )
    if found is None:
        raise NotInstalled(f"{program} is not installed")
    return found


def children(parent: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
