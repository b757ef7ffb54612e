# SPDX-License-Identifier: Apache-2.0
"""Recognises a program of another user that took the port of an instance first.

Every local user can listen on a port of loopback between the moment in which the supervisor chooses
it and that in which the program listens there. Linux lists who listens.
"""

import os
import pwd
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pipecd.plugins.process.probes import HOST
from pipecd.plugins.process.programs import users_of

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_ROOT = 0


def foreign_listener(port: int, pid: int, user: str) -> int | None:
    """Returns a stranger who listens on a port of loopback; None if there is none, or unknown.

    No stranger is the user that the program was started as, who runs one of its processes now, and
    root, who needs no port to read what a program gets.
    """
    known = {_ROOT, *users_of(pid)}
    # An account that was removed since still shows in its processes.
    with suppress(KeyError):
        known.add(pwd.getpwnam(user).pw_uid if user else os.geteuid())
    for table in _TABLES:
        # A kernel without IPv6 has only the first table, other systems may have neither.
        with suppress(OSError), table.open(encoding="ascii") as lines:
            if strangers := listening_users(lines, port) - known:
                return min(strangers)
    return None


def listening_users(lines: Iterable[str], port: int) -> set[int]:
    """Returns who accepts connections to a port of loopback, by lines of /proc/net/tcp."""
    wanted = {f"{address}:{port:04X}" for address in _ADDRESSES}
    found = set[int]()
    for line in lines:
        fields = line.split()
        if len(fields) > 7 and fields[1] in wanted and fields[3] == _LISTENING:
            found.add(int(fields[7]))
    return found


def _in_table(family: socket.AddressFamily, address: str) -> str:
    """Returns an address as the kernel writes it: words of 32 bits in the order of the machine."""
    packed = socket.inet_pton(family, address)
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


# Where a program can listen to get connections to loopback.
_ADDRESSES = (
    _in_table(socket.AF_INET, HOST),
    _in_table(socket.AF_INET, "0.0.0.0"),  # noqa: S104
    _in_table(socket.AF_INET6, "::"),
    _in_table(socket.AF_INET6, f"::ffff:{HOST}"),
)
