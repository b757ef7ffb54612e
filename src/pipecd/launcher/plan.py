# SPDX-License-Identifier: Apache-2.0
"""Decides which version of piped runs: the desired one, unless it failed to start; pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipecd.model.backoff import Backoff
from pipecd.program.handover import PipedReport

# Flags of the launcher itself; everything else is passed to piped.
OWN_VALUES = frozenset(
    {
        "config-file", "config-data", "gcp-secret-id", "aws-secret-id", "aws-ssm-parameter",
        "git-repo-url", "git-branch", "git-piped-config-file", "git-ssh-key-file",
        "git-ssh-key-data", "home-dir", "default-version", "launcher-admin-port",
        "launcher-admin-host", "check-interval", "piped-release", "start-timeout",
    }
)  # fmt: skip
OWN_SWITCHES = frozenset(
    {
        "config-from-gcp-secret", "config-from-aws-secret", "config-from-aws-ssm-parameter-store",
        "config-from-git-repo",
    }
)  # fmt: skip
_COMMAND = "launcher"

# After this many failures in a row another version is launched, and after this many failures that
# stopped the running piped it is not stopped for this version again.
MAX_TRIAL_FAILURES = 3
_RESTART_BACKOFF, _MAX_RESTART_BACKOFF = 5.0, 60.0
_UPGRADE_BACKOFF, _MAX_UPGRADE_BACKOFF = 60.0, 3600.0


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
class PlannedLaunch:
    """A launch, why it is due, and from when on, as seconds of a monotonic clock."""

    spec: LaunchSpec
    reason: str
    at: float


@dataclass(frozen=True)
class LaunchFailures:
    """The failures of a launch in a row; when the last one was, and its error."""

    count: int = 0
    interruptions: int = 0
    """How many of them stopped a running piped."""
    last_at: float = 0.0
    error: str = ""


_NO_FAILURES = LaunchFailures()


@dataclass(frozen=True)
class LaunchHistory:
    """The outcome of launches: the last good one, and the failures of others in a row."""

    good: LaunchSpec | None = None
    failures: Mapping[LaunchSpec, LaunchFailures] = field(
        default_factory=dict[LaunchSpec, LaunchFailures]
    )

    def succeeded(self, spec: LaunchSpec) -> "LaunchHistory":
        """Records that a launch passed its trial."""
        others = {each: failed for each, failed in self.failures.items() if each != spec}
        return LaunchHistory(spec, others)

    def failed(
        self, spec: LaunchSpec, error: str, *, at: float, interrupted: bool
    ) -> "LaunchHistory":
        """Records a launch that failed; `interrupted` if no piped ran because of it."""
        before = self.failures_of(spec)
        failures = LaunchFailures(before.count + 1, before.interruptions + interrupted, at, error)
        return replace(self, failures={**self.failures, spec: failures})

    def failures_of(self, spec: LaunchSpec) -> LaunchFailures:
        """Returns how often a launch has failed in a row."""
        return self.failures.get(spec, _NO_FAILURES)

    def ranked(self, desired: LaunchSpec, *fallbacks: LaunchSpec) -> list[LaunchSpec]:
        """Returns what to launch by preference while nothing runs: the desired one if it works.

        A launch that failed once comes after the last good one, which is retried a few times. When
        all of them fail, as they do while the control plane is unavailable, each is tried again and
        again.
        """
        candidates = [desired, *([self.good] if self.good else []), *fallbacks]

        def rounds(spec: LaunchSpec) -> int:
            has_better = self.good is not None and spec != self.good
            return self.failures_of(spec).count // (1 if has_better else MAX_TRIAL_FAILURES)

        return sorted(dict.fromkeys(candidates), key=rounds)

    def restart_at(self, spec: LaunchSpec) -> float:
        """Returns when a launch may be tried again while nothing else runs."""
        failed = self.failures_of(spec)
        return failed.last_at + min(_MAX_RESTART_BACKOFF, _RESTART_BACKOFF * failed.count)

    def upgrade_at(self, spec: LaunchSpec) -> float:
        """Returns when a launch may be tried again although another piped runs."""
        failed = self.failures_of(spec)
        if not failed.count:
            return failed.last_at
        if failed.interruptions >= MAX_TRIAL_FAILURES:
            return math.inf
        backoff = Backoff(first=_UPGRADE_BACKOFF, longest=_MAX_UPGRADE_BACKOFF)
        return failed.last_at + backoff.after(failed.count)


def plan_launches(
    desired: LaunchSpec,
    *fallbacks: LaunchSpec,
    launched: LaunchedPiped | None,
    history: LaunchHistory,
) -> list[PlannedLaunch]:
    """Returns the launches to try, by preference; none if the running piped is up to date.

    A running piped is replaced by the desired one only, never by a fallback.
    """
    if launched is not None and launched.exit_code is None:
        reason = upgrade_reason(launched.spec, desired)
        return [PlannedLaunch(desired, reason, history.upgrade_at(desired))] if reason else []
    reason = "no piped was started yet"
    if launched is not None:
        reason = f"piped ended with exit code {launched.exit_code}"
    return [
        PlannedLaunch(spec, reason, history.restart_at(spec))
        for spec in history.ranked(desired, *fallbacks)
    ]


def upgrade_reason(running: LaunchSpec, desired: LaunchSpec) -> str:
    """Returns the reason to replace a running piped; empty when it is up to date."""
    if running.version != desired.version:
        return f"version {desired.version} is desired instead of {running.version}"
    return "the configuration changed" if running.config != desired.config else ""


def lost_plugins(before: PipedReport | None, after: PipedReport) -> Mapping[str, str]:
    """Returns the plugins and deploy targets that worked before and do not work after, and why."""
    worked = frozenset(before.usable if before is not None else ())
    return {name: reason for name, reason in after.unusable.items() if name in worked}


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
