# SPDX-License-Identifier: Apache-2.0
"""Policies as people write them.

    resources=application{env:dev},deployment;actions=get,list

A blank line separates policies, and white space means nothing else. Upstream skips what it does not
understand, and reads a misspelt resource as all of them; here a mistake is told with its place.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn, TypeVar

from pipecd.controlplane.auth.rbac import Action, Resource
from pipecd.model.errors import UserMistake
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource

E = TypeVar("E", bound=IntEnum)

_RESOURCES = {
    "*": Resource.ALL,
    "application": Resource.APPLICATION,
    "deployment": Resource.DEPLOYMENT,
    "event": Resource.EVENT,
    "piped": Resource.PIPED,
    "deploymentChain": Resource.DEPLOYMENT_CHAIN,
    "project": Resource.PROJECT,
    "apiKey": Resource.API_KEY,
    "insight": Resource.INSIGHT,
}
_ACTIONS = {"*": Action.ALL, **{a.name.lower(): a for a in Action if a is not Action.ALL}}
_BLANK = re.compile(r"\n[^\S\n]*\n")
# What ends a word.
_MARKS = "=;,{}:"


def parse_policies(text: str) -> tuple[ProjectRBACPolicy, ...]:
    """The policies of a text; a mistake in any of them is told with its line and column."""
    policies: list[ProjectRBACPolicy] = []
    line = 1
    for part in _BLANK.split(text.replace("\r\n", "\n")):
        if part.strip():
            policies.append(_Reader(part, line).policy())
        line += part.count("\n") + 2
    if not policies:
        raise UserMistake(
            "a role needs at least one policy",
            hint="write one such as resources=application;actions=get,list",
        )
    return tuple(policies)


def render_policies(policies: Iterable[ProjectRBACPolicy]) -> str:
    """The text that gives these policies again."""
    return "\n\n".join(_rendered(policy) for policy in policies)


def _rendered(policy: ProjectRBACPolicy) -> str:
    resources = ",".join(
        _word(_RESOURCES, resource.type) + _labels(resource) for resource in policy.resources
    )
    actions = ",".join(_word(_ACTIONS, action) for action in policy.actions)
    return f"resources={resources};actions={actions}"


def _labels(resource: ProjectRBACResource) -> str:
    pairs = ",".join(f"{key}:{value}" for key, value in sorted(resource.labels.items()))
    return f"{{{pairs}}}" if pairs else ""


def _word(words: dict[str, E], wanted: int) -> str:
    return next(word for word, value in words.items() if value == wanted)


@dataclass(frozen=True)
class _Character:
    """A character and where it stands."""

    text: str
    line: int
    column: int


class _Reader:
    """Reads one policy from left to right."""

    def __init__(self, text: str, line: int) -> None:
        self._characters: Sequence[_Character] = [
            _Character(character, line + row, column)
            for row, words in enumerate(text.split("\n"))
            for column, character in enumerate(words, start=1)
            if not character.isspace()
        ]
        self._at = 0

    def policy(self) -> ProjectRBACPolicy:
        self._expect("resources=")
        resources = [self._resource()]
        while self._next() == ",":
            self._at += 1
            resources.append(self._resource())
        self._expect(";actions=")
        actions = [self._named(_ACTIONS, "an action")]
        while self._next() == ",":
            self._at += 1
            actions.append(self._named(_ACTIONS, "an action"))
        if self._next():
            self._mistake(f"expected a comma or the end, found {self._next()!r}")
        return ProjectRBACPolicy(
            resources=resources,
            actions=[ProjectRBACPolicy.Action.ValueType(action) for action in actions],
        )

    def _resource(self) -> ProjectRBACResource:
        kind = self._named(_RESOURCES, "a resource")
        resource = ProjectRBACResource(type=ProjectRBACResource.ResourceType.ValueType(kind))
        if self._next() != "{":
            return resource
        while self._next() in ("{", ","):
            self._at += 1
            key = self._label("the key of a label")
            self._expect(":")
            if key in resource.labels:
                self._mistake(f"label {key!r} is given twice", at=self._at - 1)
            resource.labels[key] = self._label("the value of a label")
        self._expect("}")
        return resource

    def _named(self, words: dict[str, E], what: str) -> E:
        begin = self._at
        word = self._taken()
        if word not in words:
            self._mistake(f"{word!r} is not {what}; use one of {', '.join(words)}", at=begin)
        return words[word]

    def _label(self, what: str) -> str:
        begin = self._at
        word = self._taken()
        if not word:
            self._mistake(f"{what} is missing", at=begin)
        return word

    def _taken(self) -> str:
        begin = self._at
        while (character := self._next()) and character not in _MARKS:
            self._at += 1
        return "".join(c.text for c in self._characters[begin : self._at])

    def _expect(self, wanted: str) -> None:
        for character in wanted:
            if self._next() != character:
                found = repr(self._next()) if self._next() else "the end"
                self._mistake(f"expected {wanted!r}, found {found}")
            self._at += 1

    def _next(self) -> str:
        return self._characters[self._at].text if self._at < len(self._characters) else ""

    def _mistake(self, words: str, at: int | None = None) -> NoReturn:
        place = min(self._at if at is None else at, len(self._characters) - 1)
        where = self._characters[place]
        raise UserMistake(f"line {where.line}, column {where.column}: {words}")
