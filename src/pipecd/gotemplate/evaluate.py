# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Walks the nodes of a template and writes its output; a missing key is an error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipecd.gotemplate.builtins import Functions
from pipecd.gotemplate.nodes import (
    Body,
    Break,
    Call,
    Chain,
    Command,
    Continue,
    Dot,
    Function,
    If,
    Literal,
    Node,
    Operand,
    Output,
    Pipe,
    Range,
    Template,
    TemplateMistake,
    Text,
    Variable,
    With,
)
from pipecd.gotemplate.values import Wrong, is_true, kind, to_text

_DEPTH = 100


class _Leave(Exception):
    """Ends a round of a range, or all of it."""

    def __init__(self, *, for_good: bool) -> None:
        self.for_good = for_good


def execute(template: Template, functions: Functions, data: Any) -> str:
    """Renders a parsed template."""
    run = _Run(template, functions)
    run.body(template.body, data, [{"$": data}])
    return "".join(run.written)


class _Run:
    """One rendering; scopes are a list of dictionaries, the innermost last."""

    def __init__(self, template: Template, functions: Functions) -> None:
        self._template, self._functions = template, functions
        self._depth = 0
        self._line = 1
        self.written: list[str] = []

    def body(self, body: Body, dot: Any, scopes: list[dict[str, Any]]) -> None:
        for node in body:
            self._node(node, dot, scopes)

    def _node(self, node: Node, dot: Any, scopes: list[dict[str, Any]]) -> None:
        match node:
            case Text(text):
                self.written.append(text)
            case Output(pipe):
                value = self._pipe(pipe, dot, scopes)
                if not pipe.variables:
                    self.written.append("<no value>" if value is None else to_text(value))
            case If(pipe, body, otherwise):
                inner = [*scopes, {}]
                chosen = body if is_true(self._pipe(pipe, dot, inner)) else otherwise
                self.body(chosen, dot, inner)
            case With(pipe, body, otherwise):
                inner = [*scopes, {}]
                value = self._pipe(pipe, dot, inner)
                if is_true(value):
                    self.body(body, value, inner)
                else:
                    self.body(otherwise, dot, inner)
            case Range():
                self._range(node, dot, scopes)
            case Call(name, pipe, line):
                self._call(name, line, None if pipe is None else self._pipe(pipe, dot, scopes))
            case Break() | Continue():
                raise _Leave(for_good=isinstance(node, Break))

    def _mistake(self, what: str) -> TemplateMistake:
        return TemplateMistake(f"template: {self._template.name}:{self._line}: {what}")

    def _call(self, name: str, line: int, value: Any) -> None:
        self._line = line
        body = self._template.defined.get(name)
        if body is None:
            raise self._mistake(f"template {name!r} not defined")
        if self._depth >= _DEPTH:
            raise self._mistake("exceeded maximum template depth")
        self._depth += 1
        self.body(body, value, [{"$": value}])
        self._depth -= 1

    def _range(self, node: Range, dot: Any, scopes: list[dict[str, Any]]) -> None:
        pipe = node.pipe
        over = self._pipe(Pipe(pipe.commands, pipe.line), dot, scopes)
        empty = True
        for key, value in self._rounds(over):
            empty = False
            inner = [*scopes, {}]
            self._assign(pipe, (key, value) if len(pipe.variables) == 2 else (value,), inner)
            try:
                self.body(node.body, value, inner)
            except _Leave as leave:
                if leave.for_good:
                    break
        if empty:
            self.body(node.otherwise, dot, [*scopes, {}])

    def _rounds(self, over: Any) -> Iterable[tuple[Any, Any]]:
        if over is None:
            return ()
        if isinstance(over, Mapping):
            return sorted(over.items(), key=lambda pair: (str(type(pair[0])), pair[0]))
        if isinstance(over, int) and not isinstance(over, bool):
            return ((i, i) for i in range(over))
        if isinstance(over, Sequence) and not isinstance(over, str):
            return enumerate(over)
        raise self._mistake(f"range can't iterate over {to_text(over)}")

    def _pipe(self, pipe: Pipe, dot: Any, scopes: list[dict[str, Any]]) -> Any:
        self._line = pipe.line or self._line
        value: Any = None
        for at, command in enumerate(pipe.commands):
            value = self._command(command, dot, scopes, (value,) if at else ())
        self._assign(pipe, (value,), scopes)
        return value

    def _assign(self, pipe: Pipe, values: Sequence[Any], scopes: list[dict[str, Any]]) -> None:
        for name, value in zip(pipe.variables, values, strict=False):
            scope = scopes[-1]
            if not pipe.declares:
                scope = next((s for s in reversed(scopes) if name in s), None)
                if scope is None:
                    raise self._mistake(f"undefined variable {name!r}")
            scope[name] = value

    def _command(
        self, command: Command, dot: Any, scopes: list[dict[str, Any]], piped: tuple[Any, ...]
    ) -> Any:
        first, *rest = command.operands
        if isinstance(first, Function):
            return self._function(first.name, rest, dot, scopes, piped)
        if rest or piped:
            raise self._mistake("can't give argument to non-function")
        return self._operand(first, dot, scopes)

    def _function(
        self,
        name: str,
        operands: Sequence[Operand],
        dot: Any,
        scopes: list[dict[str, Any]],
        piped: tuple[Any, ...],
    ) -> Any:
        arguments = (self._operand(operand, dot, scopes) for operand in operands)
        if name in ("and", "or"):
            return self._shortcut(name, arguments, piped)
        function = self._functions.get(name)
        if function is None:
            raise self._mistake(f"function {name!r} not defined")
        try:
            return function(*arguments, *piped)
        except TemplateMistake:
            raise
        except Wrong as e:
            raise self._mistake(f"error calling {name}: {e}") from e
        except TypeError as e:
            raise self._mistake(f"wrong arguments for {name}: {_plainly(e)}") from e
        except (ValueError, ArithmeticError, LookupError, AttributeError, OSError) as e:
            raise self._mistake(f"error calling {name}: {_plainly(e)}") from e

    def _shortcut(self, name: str, arguments: Iterable[Any], piped: tuple[Any, ...]) -> Any:
        value: Any = None
        given = False
        for value in (*arguments, *piped) if piped else arguments:
            given = True
            if is_true(value) is (name == "or"):
                return value
        if not given:
            raise self._mistake(f"wrong number of args for {name}: want at least 1 got 0")
        return value

    def _operand(self, operand: Operand, dot: Any, scopes: list[dict[str, Any]]) -> Any:
        match operand:
            case Literal(value):
                return value
            case Dot():
                return dot
            case Variable(name):
                return self._variable(name, scopes)
            case Function(name):
                return self._function(name, (), dot, scopes, ())
            case Chain(inner, names):
                value = self._operand(inner, dot, scopes)
                for name in names:
                    value = self._field(value, name)
                return value
            case Pipe():
                return self._pipe(operand, dot, [*scopes, {}])

    def _variable(self, name: str, scopes: list[dict[str, Any]]) -> Any:
        for scope in reversed(scopes):
            if name in scope:
                return scope[name]
        raise self._mistake(f"undefined variable {name!r}")

    def _field(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            if name not in value:
                raise self._mistake(f"map has no entry for key {name!r}")
            return value[name]
        if value is None:
            raise self._mistake(f"nil pointer evaluating interface {{}}.{name}")
        raise self._mistake(f"can't evaluate field {name} in type {kind(value)}")


def _plainly(error: Exception) -> str:
    text = str(error)
    # What Python says about its own functions begins with their names, which mean nothing here.
    return text.split("() ", 1)[1] if "() " in text else text
