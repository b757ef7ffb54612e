# SPDX-License-Identifier: Apache-2.0
"""What the launcher runs and why: what is wanted, unless that was tried and did not live; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

# Flags of the launcher itself; everything else is meant for piped.
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

# So often in a row one may end during its trial before another one gets a chance.
CHANCES = 3
_PAUSE, _LONGEST_PAUSE = 5.0, 60.0


@dataclass(frozen=True)
class Wanted:
    """What should run: a version of piped with a configuration."""

    version: str
    config: bytes = field(repr=False)


@dataclass(frozen=True)
class Running:
    """What was started, and whether it has ended by itself."""

    wanted: Wanted
    exit_code: int | None


@dataclass(frozen=True)
class Record:
    """How those that were started fared: the last that lived, and how often others did not."""

    good: Wanted | None = None
    failures: Mapping[Wanted, int] = field(default_factory=dict[Wanted, int])

    def lived(self, started: Wanted) -> "Record":
        """It ran longer than one that does not come up."""
        left = {one: count for one, count in self.failures.items() if one != started}
        return Record(started, left)

    def failed(self, started: Wanted) -> "Record":
        """It ended before it could be trusted."""
        return replace(self, failures={**self.failures, started: self.times(started) + 1})

    def times(self, started: Wanted) -> int:
        return self.failures.get(started, 0)

    def ranked(self, wanted: Wanted, *others: Wanted) -> list[Wanted]:
        """What to run, the best first: what is wanted, if it did not use up its chances.

        Those that did come behind those that did not; when all of them fail, as they do while the
        control plane is away, each gets its chances again and again.
        """
        known = [wanted, *([self.good] if self.good else []), *others]
        return sorted(dict.fromkeys(known), key=lambda one: self.times(one) // CHANCES)

    def pause_before(self, wanted: Wanted) -> float:
        """Seconds to wait before one is started that ended during its trial."""
        return min(_LONGEST_PAUSE, _PAUSE * self.times(wanted))


def why_relaunch(running: Running | None, wanted: Wanted) -> str:
    """The reason to start a piped, or an empty text when the running one is right."""
    if running is None:
        return "no piped was started yet"
    if running.exit_code is not None:
        return f"piped ended with exit code {running.exit_code}"
    if running.wanted.version != wanted.version:
        return f"version {wanted.version} is wanted instead of {running.wanted.version}"
    if running.wanted.config != wanted.config:
        return "the configuration changed"
    return ""


def forwarded(arguments: Sequence[str]) -> list[str]:
    """The arguments meant for piped: those of the launcher and their values are left out."""
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
