# SPDX-License-Identifier: Apache-2.0
"""Who is calling."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PipedCaller:
    """An agent that proved its key."""

    project: str
    piped: str


@dataclass(frozen=True)
class ApiKeyCaller:
    """A program with an API key; `may_write` is false for read-only keys."""

    project: str
    key_id: str
    name: str
    may_write: bool


@dataclass(frozen=True)
class Person:
    """Someone signed in to the console; `roles` are role names of the project."""

    project: str
    name: str
    roles: tuple[str, ...]
    avatar_url: str = ""


Subject = PipedCaller | ApiKeyCaller | Person
