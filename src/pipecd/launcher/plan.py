# SPDX-License-Identifier: Apache-2.0
"""Decides which version of piped runs: the desired one, unless it failed to start; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

# Flags of the launcher itself; everything else is passed to piped.
OWN_VALUES = frozenset(
    {
        "config-file", "config-data", "gcp-secret-id", "aws-secret-id", "aws-ssm-parameter",
        "git-repo-url", "git-branch", "git-piped-config-file", "git-ssh-key-file",
        "git-ssh-key-data", "home-dir", "default-version", "launcher-admin-port", "check-interval",
        "piped-release",
    }
)  # fmt: skip
OWN_SWITCHES = frozenset(
    {
        "config-from-gcp-secret", "config-from-aws-secret", "config-from-aws-ssm-parameter-store",
        "config-from-git-repo",
    }
)  # fmt: skip
_COMMAND = "launcher"

# After this many failures in a row during its trial another version is launched.
MAX_TRIAL_FAILURES = 3
_PAUSE, _LONGEST_PAUSE = 5.0, 60.0


@dataclass(frozen=True)
class LaunchSpec:
    """What to launch: a version of piped and its configuration."""

    version: str
    config: bytes = field(repr=False)


@dataclass(frozen=True)
class Running:
    """What was launched, and the exit code if it has ended."""

    wanted: LaunchSpec
    exit_code: int | None


@dataclass(frozen=True)
class LaunchHistory:
    """The outcome of launches: the last good one, and the failures of others in a row."""

    good: LaunchSpec | None = None
    failures: Mapping[LaunchSpec, int] = field(default_factory=dict[LaunchSpec, int])

    def lived(self, started: LaunchSpec) -> "LaunchHistory":
        """Records that a launch survived its trial."""
        left = {one: count for one, count in self.failures.items() if one != started}
        return LaunchHistory(started, left)

    def failed(self, started: LaunchSpec) -> "LaunchHistory":
        """Records that a launch ended during its trial."""
        return replace(self, failures={**self.failures, started: self.times(started) + 1})

    def times(self, started: LaunchSpec) -> int:
        return self.failures.get(started, 0)

    def ranked(self, wanted: LaunchSpec, *others: LaunchSpec) -> list[LaunchSpec]:
        """Returns what to launch by preference: the desired one, unless it failed too often.

        When all of them fail, as they do while the control plane is unavailable, each is tried
        again and again.
        """
        known = [wanted, *([self.good] if self.good else []), *others]
        return sorted(dict.fromkeys(known), key=lambda one: self.times(one) // MAX_TRIAL_FAILURES)

    def pause_before(self, wanted: LaunchSpec) -> float:
        """Returns the seconds to wait before a failed launch is retried."""
        return min(_LONGEST_PAUSE, _PAUSE * self.times(wanted))


def relaunch_reason(running: Running | None, wanted: LaunchSpec) -> str:
    """Returns the reason to launch a piped; empty when the running one is up to date."""
    if running is None:
        return "no piped was started yet"
    if running.exit_code is not None:
        return f"piped ended with exit code {running.exit_code}"
    if running.wanted.version != wanted.version:
        return f"version {wanted.version} is wanted instead of {running.wanted.version}"
    if running.wanted.config != wanted.config:
        return "the configuration changed"
    return ""


def piped_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments for piped, without the flags of the launcher."""
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in OWN_VALUES:
            if not equals and rest:
                rest.pop(0)
        elif not (argument.startswith("-") and name in OWN_SWITCHES):
            kept.append(argument)
    if _COMMAND in kept:
        # The word of the command itself; a second one is the value of a flag.
        kept.remove(_COMMAND)
    return kept
