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
    """An API key; `creator` is the user who created it, and for whom it approves if it may.

    One that `may_manage_sessions` lists and ends the sessions of the project's users.
    """

    project: str
    key_id: str
    name: str
    may_write: bool
    creator: str = ""
    may_approve: bool = False
    may_manage_sessions: bool = False


@dataclass(frozen=True)
class User:
    """A user who is signed in; `roles` are names of roles of the project."""

    project: str
    name: str
    roles: tuple[str, ...]
    avatar_url: str = ""


UserOrApiKey = User | ApiKeyCaller
Subject = PipedCaller | UserOrApiKey
