# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Renders Go's text/template with the sprig functions, with `missingkey=error`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipecd.gotemplate.builtins import BUILTINS, Functions
from pipecd.gotemplate.nodes import (
    Body,
    Break,
    Chain,
    Command,
    Continue,
    Dot,
    Function,
    If,
    Literal,
    Operand,
    Output,
    Pipe,
    Range,
    Template,
    TemplateCall,
    TemplateMistake,
    Text,
    Variable,
    With,
)
from pipecd.gotemplate.parser import parse
from pipecd.gotemplate.sprig_collections import COLLECTIONS
from pipecd.gotemplate.sprig_scalars import SCALARS, environment
from pipecd.gotemplate.sprig_strings import ENCODING, STRINGS
from pipecd.gotemplate.values import FunctionError, is_true, kind, to_text

FUNCTIONS: Functions = {
    **STRINGS,
    **SCALARS,
    **environment({}),
    **COLLECTIONS,
    **ENCODING,
    **BUILTINS,
}

Scopes = list[dict[str, Any]]
"""The variables by scope, the innermost scope last."""

_MAX_DEPTH = 100


def has_actions(text: str) -> bool:
    """Whether rendering a text may change it."""
    return "{{" in text


def render(text: str, data: Any, name: str, variables: Mapping[str, str] | None = None) -> str:
    """Renders a template; error messages begin with its `name`.

    `variables` is the environment that `env` and `expandenv` see; without it they see none.

    The data consists of mappings, lists, strings, numbers and booleans. A missing key is an error,
    because upstream renders with `missingkey=error`.
    """
    try:
        template = parse(text, name=name)
        evaluation = _Evaluation(template, {**FUNCTIONS, **environment(variables or {})})
        evaluation.body(template.body, data, [{"$": data}])
    except RecursionError as e:
        raise TemplateMistake(f"template: {name}: it is nested too deeply") from e
    return "".join(evaluation.output)


class _LoopExit(Exception):
    """Leaves the body of a range: the loop with `break`, the iteration with `continue`."""

    def __init__(self, *, is_break: bool) -> None:
        self.is_break = is_break


class _Evaluation:
    """One rendering of a template."""

    def __init__(self, template: Template, functions: Functions) -> None:
        self._template, self._functions = template, functions
        self._depth = 0
        self._line = 1
        self.output: list[str] = []

    def body(self, body: Body, dot: Any, scopes: Scopes) -> None:
        for node in body:
            match node:
                case Text(text):
                    self.output.append(text)
                case Output(pipe):
                    value = self._pipe(pipe, dot, scopes)
                    if not pipe.variables:
                        self.output.append("<no value>" if value is None else to_text(value))
                case If(pipe, then, otherwise):
                    inner = [*scopes, {}]
                    chosen = then if is_true(self._pipe(pipe, dot, inner)) else otherwise
                    self.body(chosen, dot, inner)
                case With(pipe, then, otherwise):
                    inner = [*scopes, {}]
                    value = self._pipe(pipe, dot, inner)
                    if is_true(value):
                        self.body(then, value, inner)
                    else:
                        self.body(otherwise, dot, inner)
                case Range():
                    self._range(node, dot, scopes)
                case TemplateCall():
                    self._call(node, dot, scopes)
                case Break() | Continue():
                    raise _LoopExit(is_break=isinstance(node, Break))

    def _mistake(self, what: str) -> TemplateMistake:
        return TemplateMistake(f"template: {self._template.name}:{self._line}: {what}")

    def _call(self, node: TemplateCall, dot: Any, scopes: Scopes) -> None:
        value = None if node.pipe is None else self._pipe(node.pipe, dot, scopes)
        self._line = node.line
        body = self._template.defined.get(node.name)
        if body is None:
            raise self._mistake(f"template {node.name!r} not defined")
        if self._depth >= _MAX_DEPTH:
            raise self._mistake("exceeded maximum template depth")
        self._depth += 1
        self.body(body, value, [{"$": value}])
        self._depth -= 1

    def _range(self, node: Range, dot: Any, scopes: Scopes) -> None:
        pipe = node.pipe
        value = self._pipe(Pipe(pipe.commands, pipe.line), dot, scopes)
        items: Iterable[tuple[Any, Any]]
        match value:
            case None:
                items = ()
            case Mapping():
                items = sorted(value.items(), key=lambda pair: (str(type(pair[0])), pair[0]))
            case int() if not isinstance(value, bool):
                items = ((i, i) for i in range(value))
            case Sequence() if not isinstance(value, str):
                items = enumerate(value)
            case _:
                raise self._mistake(f"range can't iterate over {to_text(value)}")
        is_empty = True
        for key, item in items:
            is_empty = False
            inner = [*scopes, {}]
            self._assign(pipe, (key, item) if len(pipe.variables) == 2 else (item,), inner)
            try:
                self.body(node.body, item, inner)
            except _LoopExit as e:
                if e.is_break:
                    break
        if is_empty:
            self.body(node.else_body, dot, [*scopes, {}])

    def _pipe(self, pipe: Pipe, dot: Any, scopes: Scopes) -> Any:
        self._line = pipe.line or self._line
        value: Any = None
        for i, command in enumerate(pipe.commands):
            value = self._command(command, dot, scopes, (value,) if i else ())
        self._assign(pipe, (value,), scopes)
        return value

    def _assign(self, pipe: Pipe, values: Sequence[Any], scopes: Scopes) -> None:
        for name, value in zip(pipe.variables, values, strict=False):
            scope = scopes[-1] if pipe.declares else self._scope_of(name, scopes)
            scope[name] = value

    def _scope_of(self, name: str, scopes: Scopes) -> dict[str, Any]:
        for scope in reversed(scopes):
            if name in scope:
                return scope
        raise self._mistake(f"undefined variable {name!r}")

    def _command(
        self, command: Command, dot: Any, scopes: Scopes, piped: tuple[Any, ...] = ()
    ) -> Any:
        """Evaluates a command; `piped` is the result of the command before it."""
        first, *rest = command.operands
        if not isinstance(first, Function):
            if rest or piped:
                raise self._mistake("can't give argument to non-function")
            return self._operand(first, dot, scopes)
        name = first.name
        arguments = (self._operand(operand, dot, scopes) for operand in rest)
        if name in ("and", "or"):
            return self._and_or(name, arguments, piped)
        function = self._functions.get(name)
        if function is None:
            raise self._mistake(f"function {name!r} not defined")
        try:
            return function(*arguments, *piped)
        except TemplateMistake:
            raise
        except FunctionError as e:
            raise self._mistake(f"error calling {name}: {e}") from e
        except TypeError as e:
            raise self._mistake(f"wrong arguments for {name}: {_reason(e)}") from e
        except (ValueError, ArithmeticError, LookupError, AttributeError, OSError) as e:
            raise self._mistake(f"error calling {name}: {_reason(e)}") from e

    def _and_or(self, name: str, arguments: Iterable[Any], piped: tuple[Any, ...]) -> Any:
        """Returns the first argument that decides, and does not evaluate those after it."""
        value: Any = None
        is_given = False
        for value in (*arguments, *piped) if piped else arguments:
            is_given = True
            if is_true(value) is (name == "or"):
                return value
        if not is_given:
            raise self._mistake(f"wrong number of args for {name}: want at least 1 got 0")
        return value

    def _operand(self, operand: Operand, dot: Any, scopes: Scopes) -> Any:
        match operand:
            case Literal(value):
                pass
            case Dot():
                value = dot
            case Variable(name):
                value = self._scope_of(name, scopes)[name]
            case Function():
                value = self._command(Command((operand,)), dot, scopes)
            case Pipe():
                value = self._pipe(operand, dot, [*scopes, {}])
            case Chain(inner, names):
                value = self._operand(inner, dot, scopes)
                for name in names:
                    if value is None:
                        raise self._mistake(f"nil pointer evaluating interface {{}}.{name}")
                    if not isinstance(value, Mapping):
                        raise self._mistake(f"can't evaluate field {name} in type {kind(value)}")
                    if name not in value:
                        raise self._mistake(f"map has no entry for key {name!r}")
                    value = value[name]
        return value


def _reason(error: Exception) -> str:
    """Returns the message of a Python error without the name of the Python function."""
    text = str(error)
    return text.split("() ", 1)[1] if "() " in text else text
