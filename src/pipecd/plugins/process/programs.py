# SPDX-License-Identifier: Apache-2.0
"""Starts programs that outlive us, finds them again, and reads what they use.

Every program leads a session of its own, whose id is the id of its process. The time at which the
kernel started it tells it from a later process with the same id.
"""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipecd.plugins.process.instance import Usage

OWNER_VARIABLE = "PIPECD_SUPERVISOR"
"""Names the directory of the supervisor that started a program, also in its child processes."""

_PROC = Path("/proc")
HAS_PROC = _PROC.joinpath("self/stat").exists()
_POLL_SECONDS = 0.25
# The fields of /proc/<pid>/stat after the name of the program, counted from the state.
_STATE, _SESSION, _USER, _SYSTEM, _START, _PAGES = 0, 3, 11, 12, 19, 21
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class CannotStart(Exception):
    """A program cannot be started; the text says why and what to do."""


@dataclass(frozen=True)
class Command:
    """Everything that starting a program needs; a command with a slash lies in the release."""

    argv: Sequence[str]
    release: Path
    directory: Path
    env: Mapping[str, str]
    log: Path
    user: str = ""


def start(command: Command) -> "subprocess.Popen[bytes]":
    """Starts a program with its output in the log, which it keeps open without us."""
    location = _location(command)
    account = _account(command.user) if command.user else None
    opened = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(opened, "ab") as log:
        try:
            return subprocess.Popen(
                command.argv,
                executable=location,
                cwd=command.directory,
                env={**command.env, **(_variables(account) if account else {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=os.getgrouplist(account.pw_name, account.pw_gid) if account else None,
                umask=0o027 if account else 0o077,
            )
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            remedy = "correct the command, its first line or the format of the file"
            if account and isinstance(e, PermissionError):
                remedy = f"the user {command.user!r} must be able to enter its directory and run it"
            raise CannotStart(f"{location} could not be started: {reason}; {remedy}") from e


def _location(command: Command) -> str:
    """Returns the file to execute; a name without a slash is looked up in PATH."""
    name = command.argv[0]
    if not command.directory.is_dir():
        raise CannotStart("the working directory does not exist; correct workingDirectory")
    place = str(command.release / name) if "/" in name else name
    path = command.env.get("PATH", os.defpath)
    if found := shutil.which(place, path=path):
        return found
    if shutil.which(place, mode=os.F_OK, path=path):
        raise CannotStart(f"{name!r} may not be executed; make it executable (chmod +x)")
    where = "" if "/" in name else " in PATH"
    raise CannotStart(f"{name!r} does not exist{where}; correct the command")


def _account(user: str) -> pwd.struct_passwd:
    """Returns the account that a program shall run as."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise CannotStart(
            f"the user {user!r} does not exist; create it, or correct limits.user"
        ) from None
    if os.geteuid() not in (0, account.pw_uid):
        raise CannotStart(
            f"only root may start programs as {user!r}; run piped as root, or leave out limits.user"
        )
    return account


def own_user() -> str:
    """Returns the name of the user of this process; its number if it has no account."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _variables(account: pwd.struct_passwd) -> dict[str, str]:
    return {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}


def start_time(pid: int) -> str:
    """Returns when the kernel started a process, in its own unit; "" if there is no such one."""
    if HAS_PROC:
        try:
            fields = _fields(str(pid))
        except (OSError, ValueError):
            return ""
        return "" if fields[_STATE] == b"Z" else fields[_START].decode()
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, check=False, text=True
    )
    return done.stdout.strip()


def signal_program(pid: int, started: str, number: signal.Signals) -> None:
    """Sends a signal to a program and its child processes, unless it has ended."""
    if start_time(pid) == started:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def end_leftovers(pid: int) -> None:
    """Ends the child processes that a program left behind when it exited."""
    for process, fields in _processes():
        # The id of the program itself may be that of another process by now.
        if int(fields[_SESSION]) == pid and process != pid:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


async def wait_for_exit(pid: int, started: str, child: "subprocess.Popen[bytes] | None") -> str:
    """Waits until a program has ended; returns how, in words."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # No event reports the end of a process that is not ours.
        while start_time(pid) == started and (  # noqa: ASYNC110
            child is None or child.poll() is None
        ):
            await asyncio.sleep(_POLL_SECONDS)
    else:
        try:
            # The process may have ended and its id be used again before we opened it.
            if child is not None or start_time(pid) == started:
                await _readable(descriptor)
        finally:
            os.close(descriptor)
    if child is None:
        return "ended"
    return exit_text(child.wait())


async def _readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def exit_text(code: int) -> str:
    """Returns the words for an exit code, negative for a signal."""
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


@dataclass(frozen=True)
class Sample:
    """What a program has used at a moment, with its child processes."""

    memory: int = 0
    processes: int = 0
    cpu_seconds: float = 0.0


def sample(pids: Collection[int]) -> dict[int, Sample]:
    """Reads what programs use; nothing where the system has no /proc."""
    found = dict.fromkeys(pids, Sample())
    for _, fields in _processes():
        session = int(fields[_SESSION])
        if session in found and fields[_STATE] != b"Z":
            before = found[session]
            ticks = int(fields[_USER]) + int(fields[_SYSTEM])
            found[session] = Sample(
                before.memory + int(fields[_PAGES]) * _PAGE,
                before.processes + 1,
                before.cpu_seconds + ticks / _TICKS,
            )
    return found


def users_of(pid: int) -> set[int]:
    """Returns who runs the processes of a program now; it may have given up its privileges."""
    found = set[int]()
    for process, fields in _processes():
        if int(fields[_SESSION]) == pid:
            with suppress(OSError):
                text = (_PROC / str(process) / "status").read_text(errors="replace")
                # The real, the effective, the saved one and that of files and sockets.
                found.update(map(int, text.partition("\nUid:")[2].partition("\n")[0].split()))
    return found


def usage_between(before: Sample, after: Sample, seconds: float) -> Usage:
    """Returns the usage that two samples show."""
    used = max(after.cpu_seconds - before.cpu_seconds, 0.0)
    cpu = round(used / seconds, 3) if seconds > 0 and before.processes else 0.0
    return Usage(after.memory, after.processes, cpu)


def find_programs(owner: str) -> Iterator[int]:
    """Yields the ids of running programs that a supervisor of a directory started."""
    marker = f"{OWNER_VARIABLE}={owner}".encode()
    for process, fields in _processes():
        if int(fields[_SESSION]) == process and fields[_STATE] != b"Z":
            with suppress(OSError):
                if marker in (_PROC / str(process) / "environ").read_bytes().split(b"\0"):
                    yield process


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    for entry in os.scandir(_PROC) if HAS_PROC else ():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                yield int(entry.name), _fields(entry.name)


def _fields(pid: str) -> list[bytes]:
    # The name of the program is in parentheses and may contain anything.
    return (_PROC / pid / "stat").read_bytes().rpartition(b")")[2].split()
