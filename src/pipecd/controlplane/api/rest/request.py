# SPDX-License-Identifier: Apache-2.0
"""From an HTTP request to the message of an RPC: path, query and body, each field by its type."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pipecd.controlplane.api.rest.addresses import Address
from pipecd.model.errors import UserMistake
from pipecd.wire.validation import is_map

_TRUTH = {"true": True, "1": True, "false": False, "0": False, "": False}
# Deeper than any request of ours, and far from what a parser can bear.
_DEEPEST = 20


def request_of(
    address: Address, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: bytes
) -> Message:
    """The request; what the path says counts more than what the body repeats."""
    content: dict[str, Any] = _parsed(body) if address.has_body else {}
    content |= _from_query(address, query)
    message = GetMessageClass(address.descriptor.input_type)()
    for name in address.fields:
        content.pop(name, None)
        content.pop(message.DESCRIPTOR.fields_by_name[name].json_name, None)
    content |= {name: path[name] for name in address.fields}
    try:
        json_format.ParseDict(content, message, max_recursion_depth=_DEEPEST)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as e:
        raise UserMistake(f"invalid request: {_short(e)}") from e
    return message


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        content: Any = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as e:
        raise UserMistake("invalid request: the body is not JSON") from e
    if not isinstance(content, dict):
        raise UserMistake("invalid request: the body is not an object")
    return cast("dict[str, Any]", content)


def _from_query(address: Address, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    fields = address.descriptor.input_type.fields_by_name
    for name, value in query:
        field = fields.get(name)
        if field is None or name in address.fields:
            raise UserMistake(f"invalid request: {name!r} is not a parameter of this address")
        if is_map(field):
            key, colon, rest = value.partition(":")
            if not colon:
                raise UserMistake(f"invalid request: write {name} as key:value")
            found.setdefault(name, {})[key] = rest
        elif field.is_repeated:
            found.setdefault(name, []).append(_typed(field, value))
        else:
            found[name] = _typed(field, value)
    return found


def _truth(text: str) -> bool:
    return _TRUTH[text.lower()]


_READ: dict[int, Callable[[str], Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: _truth,
    FieldDescriptor.CPPTYPE_INT32: int,
    FieldDescriptor.CPPTYPE_INT64: int,
}


def _typed(field: Any, value: str) -> Any:
    try:
        return _READ.get(field.cpp_type, str)(value)
    except (ValueError, KeyError) as e:
        raise UserMistake(f"invalid request: {value[:100]!r} cannot be {field.name}") from e


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
