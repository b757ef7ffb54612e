# SPDX-License-Identifier: Apache-2.0
"""What pydantic found wrong, in the words of the person who wrote the file."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic_core import ErrorDetails

_EXPECTED = {
    "string_type": "a string",
    "string_sub_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "mapping_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
}


def explain(error: "ErrorDetails") -> str:
    """Return what is wrong and, where one can tell, what to write."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _EXPECTED:
        return _wrong_type(_EXPECTED[kind], error["input"])
    match kind:
        case "missing":
            return "must be set"
        case "value_error":
            return str(context.get("error", error["msg"]))
        case "literal_error":
            return f"must be {_quoted(context)}"
        case _:
            return error["msg"].replace("Input should be", "must be", 1)


def unknown_word(what: str, word: str, known: "Iterable[str]") -> str:
    """Return `what` about an unknown word, with the known one that was probably meant."""
    close = get_close_matches(word.lower(), lower := {k.lower(): k for k in known}, n=1)
    return f'{what}, did you mean "{lower[close[0]]}"?' if close else what


def _quoted(context: "Mapping[str, Any]") -> str:
    return str(context.get("expected", "one of the known values")).replace("'", '"')


def _wrong_type(expected: str, given: object) -> str:
    text = f"must be {expected}, not {_kind(given)}"
    if expected == "a string" and isinstance(given, bool | int | float):
        return f"{text}, put it in quotes"
    if expected in ("true or false", "a whole number", "a number") and isinstance(given, str):
        return f"{text}, write it without quotes"
    if expected == "a list" and isinstance(given, str | int | float):
        return f"{text}, begin each item with a dash"
    return text


def _kind(given: object) -> str:
    words: tuple[tuple[Any, str], ...] = (
        (type(None), "null"),
        (bool, "a boolean"),
        (int, "a number"),
        (float, "a fraction"),
        (str, "a string"),
        (Sequence, "a list"),
    )
    return next((word for kind, word in words if isinstance(given, kind)), "an object")
