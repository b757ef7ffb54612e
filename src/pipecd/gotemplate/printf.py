# SPDX-License-Identifier: Apache-2.0
"""Go's format verbs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipecd.gotemplate.values import float_text, kind, to_text

_VERB = re.compile(r"%([-+# 0]*)(\d+|\*)?(?:\.(\d*|\*))?(.)?", re.DOTALL)


@dataclass(frozen=True)
class _Form:
    flags: str
    width: int
    precision: int | None
    verb: str


def sprintf(template: str, *arguments: Any) -> str:
    """Formats as Go's `fmt.Sprintf` does, with its marks for what does not fit."""
    values = iter(arguments)
    used = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal used
        flags, width, precision, verb = match.groups()
        if verb is None:
            return "%!(NOVERB)"
        if verb == "%":
            return "%"
        form = _Form(flags, _size(width, values), _precision(precision, values), verb)
        try:
            value = next(values)
        except StopIteration:
            return f"%!{verb}(MISSING)"
        used += 1
        return _pad(_format(form, value), form)

    text = _VERB.sub(replace, template)
    extra = [f"{_type_name(value)}={to_text(value)}" for value in values]
    return text + (f"%!(EXTRA {', '.join(extra)})" if extra else "")


def _size(width: str | None, values: Iterator[Any]) -> int:
    if width == "*":
        return int(next(values, 0))
    # A width that no line has would only fill the memory.
    return min(int(width or 0), 10_000)


def _precision(precision: str | None, values: Iterator[Any]) -> int | None:
    if precision is None:
        return None
    return min(_size(precision or "0", values), 1_000)


def _type_name(value: Any) -> str:
    return {"slice": "[]interface {}", "map": "map[string]interface {}", "invalid": "<nil>"}.get(
        kind(value), kind(value)
    )


def _pad(text: str, form: _Form) -> str:
    if len(text) >= form.width:
        return text
    if "-" in form.flags:
        return text.ljust(form.width)
    if "0" in form.flags and form.verb in "dxXobeEfFgG":
        sign = text[:1] if text[:1] in "+-" else ""
        return sign + text[len(sign) :].rjust(form.width - len(sign), "0")
    return text.rjust(form.width)


def _format(form: _Form, value: Any) -> str:
    match form.verb:
        case "v":
            return _any(form, value)
        case "T":
            return _type_name(value)
        case verb:
            text = _of_type(form, value)
            return f"%!{verb}({_type_name(value)}={to_text(value)})" if text is None else text


def _of_type(form: _Form, value: Any) -> str | None:
    """The value by a verb for its type; None when the verb is for another."""
    text: str | None = None
    if isinstance(value, bool):
        text = to_text(value) if form.verb == "t" else None
    elif isinstance(value, str | bytes):
        text = _text(form, value) if form.verb in "sqxX" else None
    elif isinstance(value, int):
        text = _integer(form, value) if form.verb in "dboxXcqU" else None
    elif isinstance(value, float):
        text = _float(form, value) if form.verb in "eEfFgG" else None
    elif value is not None and form.verb == "s":
        text = to_text(value)
    return text


def _any(form: _Form, value: Any) -> str:
    if "#" in form.flags and isinstance(value, str):
        return quote(value)
    if "+" in form.flags and isinstance(value, int | float) and not isinstance(value, bool):
        return ("+" if value >= 0 else "") + to_text(value)
    return to_text(value)


def _text(form: _Form, value: str | bytes) -> str:
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    if form.precision is not None:
        text = text[: form.precision]
    match form.verb:
        case "q":
            return quote(text)
        case "x":
            return text.encode().hex()
        case "X":
            return text.encode().hex().upper()
        case _:
            return text


def _integer(form: _Form, value: int) -> str:
    match form.verb:
        case "c":
            return chr(value) if 0 <= value <= 0x10FFFF else "�"
        case "q":
            return "'" + quote(chr(value))[1:-1] + "'"
        case "U":
            return f"U+{value:04X}"
        case verb:
            prefix = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}.get(verb, "")
            text = format(abs(value), verb)
            if form.precision is not None:
                text = text.rjust(form.precision, "0")
            return _sign(form, value < 0) + (prefix if "#" in form.flags else "") + text


def _float(form: _Form, value: float) -> str:
    if form.verb in "gG" and form.precision is None:
        text = float_text(abs(value))
    else:
        precision = 6 if form.precision is None else form.precision
        text = format(abs(value), f".{precision}{form.verb}")
    return _sign(form, value < 0) + text


def _sign(form: _Form, is_negative: bool) -> str:
    if is_negative:
        return "-"
    if "+" in form.flags:
        return "+"
    return " " if " " in form.flags else ""


_QUOTED = {
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
    """A text as a Go string literal."""
    return '"' + "".join(_QUOTED.get(c) or _visible(c) for c in text) + '"'


def _visible(c: str) -> str:
    if c.isprintable() and c != "\x7f":
        return c
    number = ord(c)
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
