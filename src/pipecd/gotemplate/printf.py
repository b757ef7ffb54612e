# SPDX-License-Identifier: Apache-2.0
"""Go's `fmt.Sprintf` and string literals."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipecd.gotemplate.values import float_text, kind, to_text

_DIRECTIVE = re.compile(r"%([-+# 0]*)(\d+|\*)?(?:\.(\*|\d*))?(.)?", re.DOTALL)
# Go ignores larger widths and precisions.
_MAX_SIZE = 1_000_000
# More digits than any number has would only take time.
_MAX_PRECISION = 1_000


@dataclass(frozen=True)
class _Directive:
    flags: str
    width: int
    precision: int | None
    verb: str


def sprintf(template: str, *arguments: Any) -> str:
    """Formats as Go's `fmt.Sprintf` does, including its `%!verb(…)` marks for bad arguments."""
    values = iter(arguments)

    def replace(match: re.Match[str]) -> str:
        flags, width, precision, verb = match.groups()
        if verb is None:
            return "%!(NOVERB)"
        if verb == "%":
            return "%"
        bad = ""
        minimum, limit = _size(width, values), _size(precision, values)
        if width == "*":
            if minimum is None:
                bad += "%!(BADWIDTH)"
            elif minimum < 0:
                flags, minimum = flags + "-", -minimum
        if precision == "*" and (limit is None or limit < 0):
            limit = None
            bad += "%!(BADPREC)"
        limit = None if limit is None else min(limit, _MAX_PRECISION)
        directive = _Directive(flags, minimum or 0, limit, verb)
        try:
            value = next(values)
        except StopIteration:
            return f"{bad}%!{verb}(MISSING)"
        return bad + _pad(_format(directive, value), directive)

    text = _DIRECTIVE.sub(replace, template)
    extra = [f"{_type_name(value)}={to_text(value)}" for value in values]
    return text + (f"%!(EXTRA {', '.join(extra)})" if extra else "")


def _size(written: str | None, values: Iterator[Any]) -> int | None:
    """Returns a width or precision, None if there is no valid one; `*` takes an argument."""
    if written is None:
        return None
    if written != "*":
        return min(int(written[:8] or 0), _MAX_SIZE)
    size = next(values, None)
    if isinstance(size, bool) or not isinstance(size, int) or abs(size) > _MAX_SIZE:
        return None
    return size


def _type_name(value: Any) -> str:
    return {"slice": "[]interface {}", "map": "map[string]interface {}", "invalid": "<nil>"}.get(
        kind(value), kind(value)
    )


def _pad(text: str, directive: _Directive) -> str:
    width, flags = directive.width, directive.flags
    if len(text) >= width:
        return text
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and directive.verb in "dxXobeEfFgG":
        sign = text[:1] if text[:1] in "+-" else ""
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)


def _format(directive: _Directive, value: Any) -> str:
    flags, verb = directive.flags, directive.verb
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match value:
        case _ if verb == "T":
            text = _type_name(value)
        case str() if verb == "v" and "#" in flags:
            text = quote(value)
        case int() | float() if verb == "v" and "+" in flags and is_number:
            text = ("+" if value >= 0 else "") + to_text(value)
        case _ if verb == "v":
            text = to_text(value)
        case bool() if verb == "t":
            text = to_text(value)
        case str() | bytes() if verb in "sqxX":
            text = _format_string(directive, value)
        case int() if verb in "dboxXcqU" and is_number:
            text = _format_integer(directive, value)
        case float() if verb in "eEfFgG":
            text = _format_float(directive, value)
        case _ if verb == "s" and value is not None and not isinstance(value, int | float):
            text = to_text(value)
        case _:
            text = f"%!{verb}({_type_name(value)}={to_text(value)})"
    return text


def _format_string(directive: _Directive, value: str | bytes) -> str:
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    if directive.precision is not None:
        text = text[: directive.precision]
    match directive.verb:
        case "q":
            return quote(text)
        case "x":
            return text.encode().hex()
        case "X":
            return text.encode().hex().upper()
        case _:
            return text


def _format_integer(directive: _Directive, value: int) -> str:
    match directive.verb:
        case "c":
            return chr(value) if 0 <= value <= 0x10FFFF else "�"
        case "q":
            return "'" + quote(chr(value))[1:-1] + "'"
        case "U":
            return f"U+{value:04X}"
        case verb:
            prefix = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}.get(verb, "")
            text = format(abs(value), verb)
            if directive.precision is not None:
                text = text.rjust(directive.precision, "0")
            return _sign(directive, value) + (prefix if "#" in directive.flags else "") + text


def _format_float(directive: _Directive, value: float) -> str:
    if directive.verb in "gG" and directive.precision is None:
        text = float_text(abs(value))
    else:
        precision = 6 if directive.precision is None else directive.precision
        text = format(abs(value), f".{precision}{directive.verb}")
    return _sign(directive, value) + text


def _sign(directive: _Directive, value: float) -> str:
    if value < 0:
        return "-"
    if "+" in directive.flags:
        return "+"
    return " " if " " in directive.flags else ""


_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    '"': '\\"',
    "\\": "\\\\",
}


def quote(text: str) -> str:
    """Returns a text as a Go string literal."""
    literal = ""
    for c in text:
        code = ord(c)
        if c in _ESCAPES:
            literal += _ESCAPES[c]
        elif c.isprintable() and c != "\x7f":
            literal += c
        elif code < 0x80:
            literal += f"\\x{code:02x}"
        else:
            literal += f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return f'"{literal}"'
