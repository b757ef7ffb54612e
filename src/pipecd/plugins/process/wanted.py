# SPDX-License-Identifier: Apache-2.0
"""What the configuration of an application says shall run, as the supervisor takes it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipecd.plugins.process.config import ProcessInput, ProcessTarget
from pipecd.plugins.process.desired import (
    DesiredVariant,
    HealthProbe,
    Listener,
    Program,
    ProgramLimits,
    Protocol,
)
from pipecd.plugins.process.programs import HAS_PROC
from pipecd.sdk import UserMistake
from pipecd.sdk.host import BASIC_VARIABLES

_FILES = "files"
_MAX_NAMED = 5
_ROOT = "root"
# How a program writes texts and times, in addition to what every program needs.
_LOCALE_VARIABLES = ("LANG", "LANGUAGE", "TZ")
_LOCALE_PREFIX = "LC_"


@dataclass(frozen=True)
class Difference:
    """A setting, or the files, of two versions of an application, with a text for people."""

    key: str
    text: str

    @property
    def is_of_files(self) -> bool:
        """Whether it is about the content of files and not about a setting."""
        return self.key == _FILES


@dataclass(frozen=True)
class WantedApplication:
    """The primary variant of a commit and its listener; the files are not copied yet."""

    variant: DesiredVariant
    listener: Listener | None

    def at(self, release: str, revision: int, inherited: Mapping[str, str]) -> DesiredVariant:
        """Returns the variant with the place of its copied files and the variables of piped."""
        program = replace(self.variant.program, release=release, revision=revision)
        return replace(self.variant, program=program, inherited=inherited)

    def differences(
        self, live: DesiredVariant, listener: Listener | None, files: Sequence[str] = ()
    ) -> list[Difference]:
        """Returns what is different in a live variant; values of `env` are secret.

        `files` are the names of the files that differ, if they are known.
        """
        before, after = _facts(live, listener), _facts(self.variant, self.listener)
        return [
            Difference(name, _describe(name, before, after, files))
            for name in dict.fromkeys((*before, *after))
            if before.get(name) != after.get(name)
        ]

    def changes_program(self, other: "WantedApplication") -> bool:
        """Reports whether another program runs, not only more or fewer of the same."""
        return self.variant.program.identity != other.variant.program.identity


def wanted_application(
    input: ProcessInput, target: ProcessTarget, *, digest: str, commit: str
) -> WantedApplication:
    """Returns what shall run of a commit whose files have a digest."""
    limits = input.limits
    program = Program(
        release="",
        commit=commit,
        digest=digest,
        command=input.command,
        args=input.args,
        env=dict(input.env),
        working_directory=input.working_directory,
        limits=ProgramLimits(int(limits.memory), limits.processes, limits.user),
        has_port=bool(input.port),
    )
    protocol, health = Protocol(input.protocol.lower()), input.health_check
    variant = DesiredVariant(
        program,
        input.replicas,
        HealthProbe(protocol, health.path, float(health.interval), float(health.timeout)),
        float(input.grace_period),
    )
    return WantedApplication(
        variant, Listener(target.host, input.port, protocol) if input.port else None
    )


def inherited_variables(environment: Mapping[str, str], listed: Collection[str]) -> dict[str, str]:
    """Returns the variables of piped's environment that every program of a deploy target gets.

    Others, such as the credentials of a cloud, would reach a service that strangers talk to, so
    the deploy target must list them.
    """
    names = {*BASIC_VARIABLES, *_LOCALE_VARIABLES, *listed}
    return {
        name: value
        for name, value in environment.items()
        if name in names or name.startswith(_LOCALE_PREFIX)
    }


def check_conflicts(
    id: str, listener: Listener | None, others: Mapping[str, tuple[str, Listener | None]]
) -> None:
    """Refuses a port that another application of the deploy target has."""
    for other, (name, used) in others.items():
        if other != id and listener and used and used.port == listener.port:
            raise UserMistake(
                f"port {listener.port} is the port of the application {name}",
                hint="choose another input.port",
            )


def check_allowed(input: ProcessInput, target: ProcessTarget, *, own_user: str) -> None:
    """Refuses a user or a port that the deploy target does not allow; `own_user` is piped's.

    Programs may run as the user of piped, except as root where the target lists other users.
    """
    user = input.limits.user or own_user
    is_own = user == own_user and not (user == _ROOT and target.users)
    if user not in target.users and not is_own:
        raise UserMistake(
            f"an application may not run programs as {user!r} here",
            hint="set another limits.user, or let the operator of the piped add this one to "
            "`users` of the deploy target",
        )
    if input.port and not target.allows_port(input.port):
        raise UserMistake(
            f"an application may not listen on port {input.port} here",
            hint="choose another input.port, or let the operator of the piped add this one to "
            "`ports` of the deploy target",
        )


def check_limits(limits: ProgramLimits) -> None:
    """Refuses limits that cannot be watched on this system."""
    if (limits.memory or limits.processes) and not HAS_PROC:
        raise UserMistake(
            "limits of memory and processes need /proc, which this system does not have",
            hint="leave out limits.memory and limits.processes",
        )


def _describe(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], files: Sequence[str]
) -> str:
    if name == _FILES:
        return f"the files {name_some(files, _MAX_NAMED)}" if files else "the files"
    if name.startswith("env."):
        return f"{name} {_verb(name in before, name in after)}"
    return f"{name}: {before.get(name, 'not set')} → {after.get(name, 'not set')}"


def name_some(names: Sequence[str], most: int) -> str:
    """Returns the first names, and how many there are besides."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _verb(was: bool, will_be: bool) -> str:
    return "changes" if was and will_be else "is added" if will_be else "is removed"


def _facts(variant: DesiredVariant, listener: Listener | None) -> dict[str, Any]:
    program = variant.program
    return {
        _FILES: program.digest,
        "command": program.command,
        "args": " ".join(program.args),
        **{f"env.{name}": value for name, value in sorted(program.env.items())},
        "workingDirectory": program.working_directory or ".",
        "limits.memory": program.limits.memory,
        "limits.processes": program.limits.processes,
        "limits.user": program.limits.user or "that of piped",
        "replicas": variant.replicas,
        "healthCheck.path": variant.health.path,
        "healthCheck.interval": f"{variant.health.interval:g}s",
        "healthCheck.timeout": f"{variant.health.timeout:g}s",
        "gracePeriod": f"{variant.grace_period:g}s",
        "address": str(listener) if listener else "none",
        "protocol": listener.protocol.value if listener else "none",
    }
