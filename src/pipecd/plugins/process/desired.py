# SPDX-License-Identifier: Apache-2.0
"""What shall run: the plugin writes it, the supervisor stores it and makes it so."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Final

from pipecd.plugins.process.json_codec import to_json

PRIMARY: Final = "primary"
CANARY: Final = "canary"


class Protocol(Enum):
    """What the router understands of the traffic of an application."""

    HTTP = "http"
    TCP = "tcp"


@dataclass(frozen=True)
class HealthProbe:
    """How to find out whether an instance is healthy; durations in seconds.

    A new instance must become healthy within `timeout`; a healthy one is probed every `interval`.
    """

    protocol: Protocol = Protocol.HTTP
    path: str = "/"
    interval: float = 1.0
    timeout: float = 30.0


@dataclass(frozen=True)
class ProgramLimits:
    """What one instance with its child processes may use; zero and the empty text: no limit."""

    memory: int = 0
    processes: int = 0
    user: str = ""


@dataclass(frozen=True)
class Program:
    """A program at one version, with the digest of its files.

    `revision` counts the copies of the same files: somebody had changed the ones before.
    """

    release: str
    commit: str
    digest: str
    command: str
    revision: int = 0
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    working_directory: str = ""
    limits: ProgramLimits = ProgramLimits()
    has_port: bool = False

    @cached_property
    def identity(self) -> str:
        """Names the program, independent of the commit and the place of its files."""
        parts = to_json(replace(self, release="", commit=""))
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class DesiredVariant:
    """One version of an application that runs, with a number of instances.

    `inherited` are variables of piped's own environment. They do not make another program: a
    restarted piped may have others.
    """

    program: Program
    replicas: int = 1
    health: HealthProbe = HealthProbe()
    grace_period: float = 10.0
    inherited: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Listener:
    """Where the router listens for an application."""

    host: str
    port: int
    protocol: Protocol = Protocol.HTTP

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class DesiredApplication:
    """What shall run of an application; `weights` are the shares of its variants in percent."""

    id: str
    name: str
    variants: Mapping[str, DesiredVariant] = field(default_factory=dict[str, DesiredVariant])
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    listener: Listener | None = None

    def with_variant(self, name: str, variant: DesiredVariant | None) -> "DesiredApplication":
        """Returns the same with another variant, or without it."""
        others = {key: each for key, each in self.variants.items() if key != name}
        return replace(self, variants={**others, name: variant} if variant else others)


LOOPBACK = ("127.0.0.0/8", "::1/128")
"""The networks of this machine, where a proxy in front of the router may be."""

ALL_TO_PRIMARY: Mapping[str, int] = {PRIMARY: 100, CANARY: 0}
