# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses as JSON, for the socket and the state file of the supervisor.

Unknown keys are ignored and missing ones have their default, so that two versions of the program
read each other's files. The supervisor imports nothing but the standard library, since it stays in
memory beside piped.
"""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Returns plain values that `json` can write."""
    match value:
        case Enum():
            return value.value
        case Mapping():
            items = cast("Mapping[str, Any]", value)
            return {key: to_json(each) for key, each in items.items()}
        case list() | tuple():
            return [to_json(each) for each in cast("tuple[Any, ...]", value)]
        case _ if dataclasses.is_dataclass(value):
            return {
                field.name: to_json(getattr(value, field.name))
                for field in dataclasses.fields(value)
            }
        case _:
            return value


def from_json(kind: type[T], value: Any) -> T:
    """Reads plain values as a type; raises ValueError or TypeError when they do not fit."""
    return cast("T", _read(kind, value))


def _read(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(arguments[0], value)
    if origin is tuple:
        return tuple(_read(arguments[0], each) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {str(key): _read(arguments[1], each) for key, each in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = _hints(cast("type[Any]", kind))
        known = {name: _read(hints[name], value[name]) for name in hints if name in value}
        return cast("type[Any]", kind)(**known)
    return _read_scalar(kind, value)


def _read_scalar(kind: type[Any], value: Any) -> Any:
    if issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of the type {kind.__name__}")
    return value


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)
