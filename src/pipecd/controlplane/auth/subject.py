# SPDX-License-Identifier: Apache-2.0
"""The authenticated callers of the control plane."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PipedCaller:
    """A piped; `epoch` is that of its lease, or 0 if the request carries none."""

    project: str
    piped: str
    epoch: int = 0


@dataclass(frozen=True)
class ApiKeyCaller:
    """An API key; `may_write` is false for read-only keys, `creator` is who created it."""

    project: str
    key_id: str
    name: str
    may_write: bool
    creator: str = ""


@dataclass(frozen=True)
class User:
    """A user who is signed in; `roles` are names of roles of the project."""

    project: str
    name: str
    roles: tuple[str, ...]
    avatar_url: str = ""


UserOrApiKey = User | ApiKeyCaller
Subject = PipedCaller | UserOrApiKey
