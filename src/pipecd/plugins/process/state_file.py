# SPDX-License-Identifier: Apache-2.0
"""The directory of a supervisor: its lock, its socket and what it must know after a restart."""

import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pipecd.plugins.process.desired import LOOPBACK, DesiredApplication, DesiredVariant, Listener
from pipecd.plugins.process.instance import Instance
from pipecd.plugins.process.json_codec import from_json, to_json

_PACKAGE = Path(__file__).parent
# The longest path of a socket that every system accepts.
_LONGEST_PATH = 100
# The process, the user and the group at the other end of a Unix socket.
_CREDENTIALS = struct.Struct("iII")


@cache
def code_version() -> str:
    """Returns the digest of this code; a supervisor with another one is asked to hand over."""
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted(_PACKAGE.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class StoredApplication:
    """An application with its instances.

    `previous` are the versions that serve until the desired ones can; `listener` is where the
    router listens, which may not be where it shall.
    """

    desired: DesiredApplication
    instances: tuple[Instance, ...] = ()
    serving: Mapping[str, str] = field(default_factory=dict[str, str])
    previous: Mapping[str, DesiredVariant] = field(default_factory=dict[str, DesiredVariant])
    listener: Listener | None = None


@dataclass(frozen=True)
class StoredState:
    """Everything that a supervisor must know after a restart."""

    applications: tuple[StoredApplication, ...] = ()
    status_port: int = 0
    trusted_proxies: tuple[str, ...] = LOOPBACK


@dataclass(frozen=True)
class SupervisorDirectory:
    """The files of one supervisor.

    Programs of other users must be able to enter the directories above their releases; everything
    that controls them is in `control`, which only the user of piped may enter.
    """

    path: Path

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def socket_file(self) -> Path:
        return self.control / "supervisor.sock"

    @property
    def state_file(self) -> Path:
        return self.control / "state.json"

    @property
    def lock_file(self) -> Path:
        return self.control / "lock"

    @property
    def log_file(self) -> Path:
        return self.control / "supervisor.log"

    def application(self, id: str) -> Path:
        """Returns the directory of the releases and logs of an application."""
        return self.path / "applications" / id

    def create(self) -> None:
        """Creates the directories; refuses those that another user has prepared."""
        create_passable(self.path)
        with _opened_directory(self.path) as opened:
            _refuse_shared(self.path, os.fstat(opened))
        with suppress(FileExistsError):
            self.control.mkdir(mode=0o700)
        with _opened_directory(self.control) as opened:
            if os.fstat(opened).st_uid != os.geteuid():
                raise PermissionError(f"{self.control} is a directory of another user; remove it")
            os.fchmod(opened, 0o700)

    def load(self) -> StoredState:
        """Reads the state; nothing runs yet if there is none."""
        try:
            content = self.state_file.read_bytes()
        except FileNotFoundError:
            return StoredState()
        try:
            return from_json(StoredState, json.loads(content))
        except (ValueError, TypeError, AttributeError) as e:
            raise ValueError(f"{self.state_file} is damaged; remove it") from e

    def save(self, state: StoredState) -> None:
        """Replaces the state file, which only its owner can read."""
        scratch = self.state_file.with_name("state.json.new")
        scratch.unlink(missing_ok=True)
        opened = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "wb") as file:
            file.write(json.dumps(to_json(state)).encode())
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.state_file)

    def try_lock(self) -> int | None:
        """Returns the descriptor of the lock, None if another process has it."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def connect(self) -> socket.socket:
        """Connects to the running supervisor; raises OSError if there is none of this user."""
        opened = socket.socket(socket.AF_UNIX)
        try:
            with _ShortPath(self.socket_file) as path:
                opened.connect(path)
            _check_peer(opened)
        except OSError:
            opened.close()
            raise
        return opened

    def listen(self) -> socket.socket:
        """Opens the socket that plugins connect to; the lock is held."""
        self.socket_file.unlink(missing_ok=True)
        opened = socket.socket(socket.AF_UNIX)
        with _ShortPath(self.socket_file) as path:
            opened.bind(path)
        self.socket_file.chmod(0o600)
        opened.listen()
        opened.setblocking(False)
        return opened


def create_passable(path: Path) -> None:
    """Creates a directory that every user may pass, but only its owner may list."""
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(exist_ok=True)
            each.chmod(0o711)


@contextmanager
def _opened_directory(path: Path) -> Generator[int]:
    """Opens a directory, so that what is checked is what is changed; refuses a link."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as e:
        if path.is_symlink():
            raise PermissionError(f"{path} is a link; name the directory that it leads to") from e
        if e.errno == errno.ENOTDIR:
            raise NotADirectoryError(f"{path} is no directory; remove it") from e
        raise
    try:
        yield opened
    finally:
        os.close(opened)


def _refuse_shared(path: Path, status: os.stat_result) -> None:
    """Refuses a directory in which another user could replace what controls programs.

    Root may own it: a volume is often mounted like that, and root can do everything anyway.
    """
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{path} is a directory of another user")
    if status.st_mode & stat.S_IWOTH:
        raise PermissionError(f"every user may write in {path}; remove that permission (chmod o-w)")


def _check_peer(connected: socket.socket) -> None:
    """Refuses a socket at which another user listens; not every system tells."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(peer)
    if user != os.geteuid():
        raise PermissionError(f"the supervisor runs as the user {user}, which is another one")


class _ShortPath:
    """A short path of a socket: the kernel accepts about 100 characters only."""

    def __init__(self, path: Path) -> None:
        self._path, self._directory = path, -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= _LONGEST_PATH:
            return str(self._path)
        self._directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._directory}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        if self._directory >= 0:
            os.close(self._directory)
