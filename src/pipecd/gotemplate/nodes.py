# SPDX-License-Identifier: Apache-2.0
"""The nodes of a parsed template."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipecd.model.errors import UserMistake


class TemplateMistake(UserMistake):
    """A template cannot be parsed or rendered; the message has its name and the line."""


@dataclass(frozen=True)
class Literal:
    """A number, a string, a boolean, or None for `nil`."""

    value: Any


@dataclass(frozen=True)
class Dot:
    """`.`, the current value."""


@dataclass(frozen=True)
class Function:
    """A function by its name."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A variable by its name with the `$`; `$` alone is the data of the template."""

    name: str


@dataclass(frozen=True)
class Chain:
    """Field access: `.a.b`, `$x.a`, `(…).a`."""

    operand: "Operand"
    names: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A function or a value, with the arguments that follow it."""

    operands: tuple["Operand", ...]


@dataclass(frozen=True)
class Pipe:
    """A pipeline: commands joined by `|`, and the variables that are set to its result."""

    commands: tuple[Command, ...]
    line: int
    variables: tuple[str, ...] = ()
    declares: bool = True


Operand = Literal | Dot | Function | Variable | Chain | Pipe


@dataclass(frozen=True)
class Text:
    """Text outside of actions."""

    text: str


@dataclass(frozen=True)
class Output:
    """`{{pipe}}`: prints a value, or sets variables."""

    pipe: Pipe


@dataclass(frozen=True)
class If:
    """`{{if pipe}} … {{else}} … {{end}}`."""

    pipe: Pipe
    body: "Body"
    else_body: "Body"


@dataclass(frozen=True)
class With:
    """`{{with pipe}} … {{else}} … {{end}}`."""

    pipe: Pipe
    body: "Body"
    else_body: "Body"


@dataclass(frozen=True)
class Range:
    """`{{range pipe}} … {{else}} … {{end}}`."""

    pipe: Pipe
    body: "Body"
    else_body: "Body"


@dataclass(frozen=True)
class TemplateCall:
    """`{{template "name" value}}`."""

    name: str
    pipe: Pipe | None
    line: int


@dataclass(frozen=True)
class Break:
    """`{{break}}`: leaves the range."""


@dataclass(frozen=True)
class Continue:
    """`{{continue}}`: starts the next iteration of the range."""


Node = Text | Output | If | With | Range | TemplateCall | Break | Continue
Body = tuple[Node, ...]


@dataclass(frozen=True)
class Template:
    """A parsed template and the templates it defines."""

    name: str
    body: Body
    defined: Mapping[str, Body] = field(default_factory=dict[str, Body])
