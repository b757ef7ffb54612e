# SPDX-License-Identifier: Apache-2.0
"""Chooses a free port for a program that will listen on it later."""

import random
import socket
from contextlib import suppress
from pathlib import Path

# The ephemeral ports of Linux, for outgoing connections and for listeners on port 0.
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Above the ports of most services and below the node ports of Kubernetes.
_FROM, _TO = 20_000, 30_000
_TRIES = 100


def free_port() -> int:
    """Returns a port that is free and that the kernel does not assign to another process."""
    try:
        first_ephemeral = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except OSError:
        first_ephemeral = _TO
    ports = range(_FROM, min(_TO, first_ephemeral))
    for _ in range(_TRIES if ports else 0):
        with suppress(OSError):
            return _bindable(random.SystemRandom().choice(ports))
    return _bindable(0)


def _bindable(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return probe.getsockname()[1]
