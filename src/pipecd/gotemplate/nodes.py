# SPDX-License-Identifier: Apache-2.0
"""What a parsed template consists of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipecd.model.errors import UserMistake


class TemplateMistake(UserMistake):
    """A template that cannot be parsed or rendered; the message names it and its line."""


@dataclass(frozen=True)
class Literal:
    """A number, a text, a truth value, or None for `nil`."""

    value: Any


@dataclass(frozen=True)
class Dot:
    """The current value."""


@dataclass(frozen=True)
class Function:
    name: str


@dataclass(frozen=True)
class Variable:
    """`$x` by its name with the sign; `$` is the value the template was given."""

    name: str


@dataclass(frozen=True)
class Chain:
    """Fields of a value: `.a.b`, `$x.a`, `(…).a`."""

    operand: "Operand"
    names: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A word with its arguments."""

    operands: tuple["Operand", ...]


@dataclass(frozen=True)
class Pipe:
    """Commands joined by `|`, with the variables that take the result."""

    commands: tuple[Command, ...]
    line: int
    variables: tuple[str, ...] = ()
    declares: bool = True


Operand = Literal | Dot | Function | Variable | Chain | Pipe


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Output:
    pipe: Pipe


@dataclass(frozen=True)
class If:
    pipe: Pipe
    body: "Body"
    otherwise: "Body"


@dataclass(frozen=True)
class With:
    pipe: Pipe
    body: "Body"
    otherwise: "Body"


@dataclass(frozen=True)
class Range:
    pipe: Pipe
    body: "Body"
    otherwise: "Body"


@dataclass(frozen=True)
class Call:
    """`{{template "name" value}}`."""

    name: str
    pipe: Pipe | None
    line: int


@dataclass(frozen=True)
class Break:
    """Leaves a range."""


@dataclass(frozen=True)
class Continue:
    """Goes on with the next round of a range."""


Node = Text | Output | If | With | Range | Call | Break | Continue
Body = tuple[Node, ...]


@dataclass(frozen=True)
class Template:
    """A parsed template and those it defines."""

    name: str
    body: Body
    defined: Mapping[str, Body] = field(default_factory=dict[str, Body])
