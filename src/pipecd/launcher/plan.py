# SPDX-License-Identifier: Apache-2.0
"""Whether the piped has to be started anew, and why; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

# Flags of the launcher itself; everything else is meant for piped.
OWN_VALUES = frozenset(
    {
        "config-file", "config-data", "gcp-secret-id", "aws-secret-id", "aws-ssm-parameter",
        "git-repo-url", "git-branch", "git-piped-config-file", "git-ssh-key-file",
        "git-ssh-key-data", "home-dir", "default-version", "launcher-admin-port", "check-interval",
    }
)  # fmt: skip
OWN_SWITCHES = frozenset(
    {
        "config-from-gcp-secret", "config-from-aws-secret", "config-from-aws-ssm-parameter-store",
        "config-from-git-repo",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What should run: a version of piped with a configuration."""

    version: str
    config: bytes


@dataclass(frozen=True)
class Running:
    """What was started, and whether it has ended by itself."""

    wanted: Wanted
    exit_code: int | None


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
    return kept
