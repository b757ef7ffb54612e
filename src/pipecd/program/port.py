# SPDX-License-Identifier: Apache-2.0
"""A port for a program that is about to be started, and that will listen on it some time later."""

import random
import socket
from contextlib import suppress
from pathlib import Path

# What Linux gives to outgoing connections, and to whoever listens without naming a port.
_GIVEN_AWAY = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Above most services, and below the node ports of Kubernetes.
_FROM, _TO = 20_000, 30_000
_TRIES = 100


def free_port() -> int:
    """A port that nobody listens on, and that the system gives to nobody else meanwhile."""
    ports = range(_FROM, min(_TO, _first_given_away()))
    for _ in range(_TRIES if ports else 0):
        with suppress(OSError):
            return _bindable(random.SystemRandom().choice(ports))
    return _bindable(0)


def _bindable(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return probe.getsockname()[1]


def _first_given_away() -> int:
    """The first port that others are given, on systems that tell."""
    try:
        return int(_GIVEN_AWAY.read_text().split()[0])
    except OSError:
        return _TO
