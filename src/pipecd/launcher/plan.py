# SPDX-License-Identifier: Apache-2.0
"""Decides which version of piped runs: the desired one, unless it failed to start; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

# Flags of the launcher itself; everything else is passed to piped.
OWN_VALUES = frozenset(
    {
        "config-file", "config-data", "gcp-secret-id", "aws-secret-id", "aws-ssm-parameter",
        "git-repo-url", "git-branch", "git-piped-config-file", "git-ssh-key-file",
        "git-ssh-key-data", "home-dir", "default-version", "launcher-admin-port",
        "launcher-admin-host", "check-interval", "piped-release",
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
_BACKOFF, _MAX_BACKOFF = 5.0, 60.0


@dataclass(frozen=True)
class LaunchSpec:
    """What to launch: a version of piped and its configuration."""

    version: str
    config: bytes = field(repr=False)


@dataclass(frozen=True)
class LaunchedPiped:
    """The piped that was launched last, and its exit code if it has ended."""

    spec: LaunchSpec
    exit_code: int | None


@dataclass(frozen=True)
class LaunchHistory:
    """The outcome of launches: the last good one, and the failures of others in a row."""

    good: LaunchSpec | None = None
    failures: Mapping[LaunchSpec, int] = field(default_factory=dict[LaunchSpec, int])

    def succeeded(self, spec: LaunchSpec) -> "LaunchHistory":
        """Records that a launch passed its trial."""
        others = {each: count for each, count in self.failures.items() if each != spec}
        return LaunchHistory(spec, others)

    def failed(self, spec: LaunchSpec) -> "LaunchHistory":
        """Records that a launch ended during its trial."""
        return replace(self, failures={**self.failures, spec: self.failures_of(spec) + 1})

    def failures_of(self, spec: LaunchSpec) -> int:
        """Returns how often a launch has failed in a row."""
        return self.failures.get(spec, 0)

    def ranked(self, desired: LaunchSpec, *fallbacks: LaunchSpec) -> list[LaunchSpec]:
        """Returns what to launch by preference: the desired one, unless it failed too often.

        When all of them fail, as they do while the control plane is unavailable, each is tried
        again and again.
        """
        candidates = [desired, *([self.good] if self.good else []), *fallbacks]
        return sorted(
            dict.fromkeys(candidates), key=lambda each: self.failures_of(each) // MAX_TRIAL_FAILURES
        )

    def backoff(self, spec: LaunchSpec) -> float:
        """Returns the seconds to wait before a failed launch is retried."""
        return min(_MAX_BACKOFF, _BACKOFF * self.failures_of(spec))


def launch_reason(launched: LaunchedPiped | None, desired: LaunchSpec) -> str:
    """Returns the reason to launch a piped; empty when the running one is up to date."""
    if launched is None:
        return "no piped was started yet"
    if launched.exit_code is not None:
        return f"piped ended with exit code {launched.exit_code}"
    if launched.spec.version != desired.version:
        return f"version {desired.version} is desired instead of {launched.spec.version}"
    if launched.spec.config != desired.config:
        return "the configuration changed"
    return ""


def piped_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments for piped, without the flags of the launcher."""
    passed: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in OWN_VALUES:
            if not equals and rest:
                rest.pop(0)
        elif not (argument.startswith("-") and name in OWN_SWITCHES):
            passed.append(argument)
    if _COMMAND in passed:
        # The first one is the command itself; a second one is the value of a flag.
        passed.remove(_COMMAND)
    return passed
