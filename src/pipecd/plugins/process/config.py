# SPDX-License-Identifier: Apache-2.0
"""The configuration of the process plugin, which runs plain programs beside piped."""

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipecd.plugins.process.desired import LOOPBACK
from pipecd.plugins.process.release_files import ReleaseLimits
from pipecd.sdk.config import (
    Duration,
    NoOptions,
    Percentage,
    PluginConfig,
    Replicas,
    Size,
    Spec,
    must_be_set,
    refuse,
)

_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class HealthCheck(Spec):
    """When a started program counts as healthy.

    With a port, an HTTP GET of `path` must answer 2xx or 3xx within `timeout`, or a connection be
    accepted if the protocol is TCP; without one, the program must still run after `interval`. A
    running program is checked every `interval`.
    """

    path: str = "/"
    interval: Duration = Duration(1)
    timeout: Duration = Duration(30)

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        refuse(
            self,
            (not self.path.startswith("/"), "path", f"{self.path!r} must begin with /"),
            (any(c.isspace() for c in self.path), "path", f"{self.path!r} must contain no blank"),
            (self.interval < 0, "interval", "must be longer than 0s"),
            (self.timeout < 0, "timeout", "must be longer than 0s"),
        )
        return self


class ResourceLimits(Spec):
    """What one replica with its child processes may use, and the user it runs as.

    A replica that uses more memory or has more processes is ended and started again.
    """

    memory: Size = Size(0)
    processes: int = Field(default=0, ge=0)
    user: str = ""


class ProcessInput(Spec):
    """The program to run, and how.

    Paths are relative to the directory of the application. Each replica has a port of its own
    in `PORT`; the router listens on `port` and distributes requests to the healthy replicas.
    """

    command: Annotated[str, Field(validate_default=True), must_be_set("command")] = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict[str, str])
    working_directory: str = ""
    port: int = Field(default=0, ge=0, le=65535)
    protocol: Literal["HTTP", "TCP"] = "HTTP"
    health_check: HealthCheck = HealthCheck()
    replicas: int = Field(default=1, ge=1)
    grace_period: Duration = Duration(10)
    limits: ResourceLimits = ResourceLimits()

    @field_validator("command")
    @classmethod
    def _file_inside(cls, value: str) -> str:
        # A name without a slash is looked up in PATH.
        if "/" in value and not _is_inside(value):
            raise ValueError(f"{value!r} must lead to a file in the directory of the application")
        return value

    @field_validator("working_directory")
    @classmethod
    def _directory_inside(cls, value: str) -> str:
        if not _is_inside(value):
            raise ValueError(f"{value!r} must lead to a directory of the application")
        return value

    @field_validator("env")
    @classmethod
    def _names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        _check_names(value)
        return value

    @field_validator("grace_period")
    @classmethod
    def _not_negative(cls, value: Duration) -> Duration:
        if value < 0:
            raise ValueError("must be greater than or equal to 0")
        return value


class ProcessApplication(Spec):
    """The section `plugins.process` of an application."""

    input: ProcessInput
    quick_sync: NoOptions = NoOptions()


class ProcessCanaryRolloutOptions(Spec):
    """PROCESS_CANARY_ROLLOUT: how many replicas of the new version run beside the old one."""

    replicas: Replicas = Replicas(1)


class ProcessTrafficRoutingOptions(Spec):
    """PROCESS_TRAFFIC_ROUTING: the share of one variant, the other gets the rest."""

    primary: Percentage | None = None
    canary: Percentage | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        shares = {"primary": self.primary, "canary": self.canary}
        refuse(
            self,
            *(
                (share is not None and not 0 <= share <= 100, key, "must be from 0 to 100")
                for key, share in shares.items()
            ),
            (
                self.primary is not None
                and self.canary is not None
                and self.primary + self.canary != 100,
                "",
                "primary and canary must add up to 100, write only one of them",
            ),
        )
        return self

    def shares(self) -> tuple[int, int]:
        """Returns the percentages of primary and canary; the default is all to primary."""
        if self.primary is not None:
            return int(self.primary), 100 - self.primary
        if self.canary is not None:
            return 100 - self.canary, int(self.canary)
        return 100, 0


class ProcessTarget(Spec):
    """The machine piped runs on.

    The router listens on `host`; programs, their logs and the state that a restarted piped
    needs are stored in `directory`, by default beside piped's own data. On `statusPort` of
    loopback the error rates of variants and metrics can be read; 0 is none. Programs get those
    variables of piped's environment that `variables` names, in addition to a few harmless ones.
    The router believes what clients in the networks `trustedProxies` say about other clients.
    Applications may choose one of `users` besides the user of piped, and one of `ports`.
    A release has at most `releaseFiles` files and `releaseSize` bytes.
    """

    host: str = "127.0.0.1"
    directory: str = ""
    status_port: int = Field(default=0, ge=0, le=65535)
    variables: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = LOOPBACK
    users: tuple[str, ...] = ()
    ports: tuple[int | str, ...] = ("1024-65535",)
    release_files: int = Field(default=ReleaseLimits.files, ge=1)
    release_size: Size = Size(ReleaseLimits.size)

    @field_validator("directory")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value and not PurePosixPath(value).is_absolute():
            raise ValueError(f"{value!r} must be an absolute path")
        return value

    @field_validator("ports")
    @classmethod
    def _ranges(cls, value: tuple[int | str, ...]) -> tuple[int | str, ...]:
        for each in value:
            _port_range(each)
        return value

    @property
    def release_limits(self) -> ReleaseLimits:
        """How large a release may be."""
        return ReleaseLimits(self.release_files, int(self.release_size))

    def allows_port(self, port: int) -> bool:
        """Whether an application may choose a port."""
        return any(port in _port_range(each) for each in self.ports)

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                ip_network(each)
            except ValueError:
                raise ValueError(f"{each!r} is no address and no network") from None
        return value

    @field_validator("variables")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        _check_names(value)
        return value


def _port_range(text: int | str) -> range:
    found = _PORTS.fullmatch(str(text))
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{text!r} is no port and no range of ports such as 8000-8999")
    return range(first, last + 1)


def _is_inside(value: str) -> bool:
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts


def _check_names(variables: Iterable[str]) -> None:
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an environment variable")


CONFIG = PluginConfig(
    name="process",
    application=ProcessApplication,
    stages={
        "PROCESS_SYNC": NoOptions,
        "PROCESS_CANARY_ROLLOUT": ProcessCanaryRolloutOptions,
        "PROCESS_TRAFFIC_ROUTING": ProcessTrafficRoutingOptions,
        "PROCESS_PRIMARY_ROLLOUT": NoOptions,
        "PROCESS_CANARY_CLEAN": NoOptions,
    },
    deploy_target=ProcessTarget,
)
