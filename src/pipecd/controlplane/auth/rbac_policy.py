# SPDX-License-Identifier: Apache-2.0
"""Parses and renders RBAC policies in the text form of the console.

    resources=application{env:dev},deployment;actions=get,list

A blank line separates policies; other white space is ignored. Upstream skips what it cannot parse
and treats a misspelt resource as all resources; here an error names the line and the column.
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
DELIMITERS = "=;,{}:"


def parse_policies(text: str) -> tuple[ProjectRBACPolicy, ...]:
    """Parses policies; an error names its line and column."""
    policies: list[ProjectRBACPolicy] = []
    line = 1
    for part in _BLANK.split(text.replace("\r\n", "\n")):
        if part.strip():
            policies.append(_Parser(part, line).policy())
        line += part.count("\n") + 2
    if not policies:
        raise UserMistake(
            "a role needs at least one policy",
            hint="write one such as resources=application;actions=get,list",
        )
    return tuple(policies)


def render_policies(policies: Iterable[ProjectRBACPolicy]) -> str:
    """Renders policies as text that `parse_policies` reads back."""
    texts: list[str] = []
    for policy in policies:
        resources: list[str] = []
        for resource in policy.resources:
            pairs = ",".join(f"{key}:{value}" for key, value in sorted(resource.labels.items()))
            labels = f"{{{pairs}}}" if pairs else ""
            resources.append(_word(_RESOURCES, resource.type) + labels)
        actions = [_word(_ACTIONS, action) for action in policy.actions]
        texts.append(f"resources={','.join(resources)};actions={','.join(actions)}")
    return "\n\n".join(texts)


def _word(words: dict[str, E], number: int) -> str:
    return next(word for word, value in words.items() if value == number)


@dataclass(frozen=True)
class _Character:
    """A character and its position in the text."""

    text: str
    line: int
    column: int


class _Parser:
    """Parses one policy from left to right."""

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
            self._fail(f"expected a comma or the end, got {self._next()!r}")
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
                self._fail(f"label {key!r} is given twice", at=self._at - 1)
            resource.labels[key] = self._label("the value of a label")
        self._expect("}")
        return resource

    def _named(self, words: dict[str, E], what: str) -> E:
        begin = self._at
        word = self._take_word()
        if word not in words:
            self._fail(f"{word!r} is not {what}; use one of {', '.join(words)}", at=begin)
        return words[word]

    def _label(self, what: str) -> str:
        begin = self._at
        word = self._take_word()
        if not word:
            self._fail(f"{what} is missing", at=begin)
        return word

    def _take_word(self) -> str:
        begin = self._at
        while (character := self._next()) and character not in DELIMITERS:
            self._at += 1
        return "".join(c.text for c in self._characters[begin : self._at])

    def _expect(self, literal: str) -> None:
        for character in literal:
            if self._next() != character:
                actual = repr(self._next()) if self._next() else "the end"
                self._fail(f"expected {literal!r}, got {actual}")
            self._at += 1

    def _next(self) -> str:
        return self._characters[self._at].text if self._at < len(self._characters) else ""

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        position = min(self._at if at is None else at, len(self._characters) - 1)
        where = self._characters[position]
        raise UserMistake(f"line {where.line}, column {where.column}: {message}")
