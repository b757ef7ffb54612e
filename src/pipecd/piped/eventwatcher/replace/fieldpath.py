# SPDX-License-Identifier: Apache-2.0
"""Paths to a value in a file, such as `$.spec.containers[0].image`."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from pipecd.model.errors import UserMistake


@dataclass(frozen=True)
class Key:
    """The value of a name."""

    name: str


@dataclass(frozen=True)
class Index:
    """The item at a place, counted from 0."""

    number: int


@dataclass(frozen=True)
class Every:
    """All items of a list."""


@dataclass(frozen=True)
class Anywhere:
    """The values of a name at any depth."""

    name: str


Step: TypeAlias = Key | Index | Every | Anywhere

_STEP = re.compile(
    r"""
    (?P<dots>\.\.?) (?: '(?P<quoted>[^']*)' | (?P<name>[^.\[\]'*]+) )
    | \[ (?: (?P<number>[0-9]{1,9}) | (?P<every>\*)
           | '(?P<single>[^']*)' | "(?P<double>[^"]*)" ) \]
    """,
    re.VERBOSE,
)


def parse_path(path: str) -> tuple[Step, ...]:
    """Reads a path; one that cannot be read is the mistake of whoever wrote it."""
    if not path.startswith("$"):
        raise _unreadable(path, "it must begin with $, which stands for the whole file")
    steps: list[Step] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise _unreadable(path, f"it cannot be read from {path[at:]!r} on")
        steps.append(_step(match))
        at = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["number"] is not None:
        return Index(int(match["number"]))
    if match["every"]:
        return Every()
    names = (match["quoted"], match["name"], match["single"], match["double"])
    name = next(name for name in names if name is not None)
    return Anywhere(name) if match["dots"] == ".." else Key(name)


def _unreadable(path: str, why: str) -> UserMistake:
    return UserMistake(f"{path!r} is not a path: {why}", hint="write it like $.spec.items[0].name")
