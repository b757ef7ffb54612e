# SPDX-License-Identifier: Apache-2.0
"""Messages as the JSON documents that upstream stores in its database, files and cache.

The form is that of Go's encoding/json, not proto JSON: keys are the field names of the .proto files
in declaration order, zero values are left out, enums and 64-bit integers are numbers. The codec of
a message type is compiled once from its descriptor.
"""

import base64
import binascii
import json
import math
from array import array
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from json.encoder import encode_basestring as _string
from typing import Any, NoReturn, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

Writer = Callable[[Any], str]
Reader = Callable[[Any, Any], None]
Convert = Callable[[Any], Any]

# Go writes these so that a document can stand inside HTML and JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def to_json(message: Message, *, extra: str | None = None) -> str:
    """The stored form of a message; `extra` is the text that upstream keeps under `_extra`."""
    written = _object(message)
    if extra is not None:
        comma = "," if len(written) > 2 else ""
        written = f'{written[:-1]}{comma}"_extra":{_string(extra)}}}'
    # These characters stand in texts only, so that they can be looked for in all of it at once.
    if any(chr(character) in written for character in _ESCAPED):
        return written.translate(_ESCAPED)
    return written


def from_json(text: str | bytes, message_type: type[M]) -> M:
    """Reads a stored document; unknown keys are ignored and the case of keys does not matter."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    message = message_type()
    _fill(message, json.loads(text, parse_constant=_refuse_constant))
    return message


def _object(message: Message) -> str:
    writers, is_in_order = _writers(message.DESCRIPTOR)
    # Only what is set is listed, which is what Go's omitempty keeps.
    fields = message.ListFields()
    if not is_in_order:
        fields = sorted(fields, key=lambda pair: pair[0].index)
    parts: list[str] = []
    for field, value in fields:
        key, write = writers[field]
        parts.append(key + write(value))
    return "{" + ",".join(parts) + "}"


@cache
def _writers(descriptor: Descriptor) -> tuple[Mapping[FieldDescriptor, tuple[str, Writer]], bool]:
    """How each field is written, and whether their numbers are in the order of declaration."""
    numbers = [field.number for field in descriptor.fields]
    writers = {field: (f"{_string(field.name)}:", _writer(field)) for field in descriptor.fields}
    return writers, numbers == sorted(numbers)


def _writer(field: FieldDescriptor) -> Writer:
    if (value := _map_value(field)) is not None:
        write = _single_writer(value)
        return lambda entries: (
            "{" + ",".join(f"{_string(k)}:{write(entries[k])}" for k in sorted(entries)) + "}"
        )
    write = _single_writer(field)
    if field.is_repeated:
        return lambda values: "[" + ",".join(write(value) for value in values) + "]"
    return write


def _single_writer(field: FieldDescriptor) -> Writer:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    special: dict[int, Writer] = {
        FieldDescriptor.CPPTYPE_MESSAGE: _object,
        FieldDescriptor.CPPTYPE_STRING: _string,
        FieldDescriptor.CPPTYPE_BOOL: lambda value: "true" if value else "false",
        FieldDescriptor.CPPTYPE_FLOAT: lambda value: _float(value, _shortest_single(value)),
        FieldDescriptor.CPPTYPE_DOUBLE: lambda value: _float(value, repr(value)),
    }
    return special.get(field.cpp_type, str)


def _float(value: float, shortest: str) -> str:
    """Writes a number as Go does: plain, and with an exponent only when very large or small."""
    if not math.isfinite(value):
        raise ValueError(f"{value} has no form in JSON")
    number = Decimal(shortest).normalize()
    if number == 0 or -6 <= number.adjusted() < 21:
        return format(number, "f")
    sign, digits, _ = number.as_tuple()
    mantissa = ".".join(part for part in (str(digits[0]), "".join(map(str, digits[1:]))) if part)
    return f"{'-' if sign else ''}{mantissa}e{number.adjusted():+d}"


def _shortest_single(value: float) -> str:
    """The fewest digits that still name this 32-bit number."""
    candidates = (f"{value:.{precision}g}" for precision in range(1, 9))
    return next(
        (text for text in candidates if array("f", [float(text)])[0] == value), f"{value:.9g}"
    )


def _fill(message: Message, document: Any) -> None:
    descriptor = message.DESCRIPTOR
    if not isinstance(document, dict):
        raise _mismatch(descriptor.full_name, "an object", document)
    readers = _readers(descriptor)
    for key, value in cast("dict[str, Any]", document).items():
        read = readers.get(key) or readers.get(key.lower())
        # Go leaves a field alone when the document says null.
        if read is not None and value is not None:
            read(message, value)


@cache
def _readers(descriptor: Descriptor) -> Mapping[str, Reader]:
    by_name = {field.name: _reader(field) for field in descriptor.fields}
    return {name.lower(): read for name, read in by_name.items()} | by_name


def _reader(field: FieldDescriptor) -> Reader:
    if (value := _map_value(field)) is not None:
        return _map_reader(field, value)
    if field.is_repeated:
        return _list_reader(field)
    name = field.name
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:

        def read_message(message: Any, value: Any) -> None:
            inner = getattr(message, name)
            inner.SetInParent()
            _fill(inner, value)

        return read_message
    convert = _converter(field)
    return lambda message, value: setattr(message, name, convert(value))


def _list_reader(field: FieldDescriptor) -> Reader:
    name, full_name = field.name, field.full_name
    holds_messages = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    convert = _converter(field)

    def read_list(message: Any, values: Any) -> None:
        if not isinstance(values, list):
            raise _mismatch(full_name, "a list", values)
        message.ClearField(name)
        elements = getattr(message, name)
        for value in cast("list[Any]", values):
            if holds_messages:
                _fill(elements.add(), {} if value is None else value)
            else:
                elements.append(convert(value))

    return read_list


def _map_reader(field: FieldDescriptor, value_field: FieldDescriptor) -> Reader:
    name, full_name = field.name, field.full_name
    holds_messages = value_field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    convert = _converter(value_field)

    def read_map(message: Any, values: Any) -> None:
        if not isinstance(values, dict):
            raise _mismatch(full_name, "an object", values)
        entries = getattr(message, name)
        for key, value in cast("dict[str, Any]", values).items():
            if holds_messages:
                _fill(entries[_text(key)], {} if value is None else value)
            else:
                entries[_text(key)] = convert(value)

    return read_map


def _converter(field: FieldDescriptor) -> Convert:
    """Turns a JSON value into that of a scalar field; null inside a list or map means zero."""
    full_name = field.full_name
    expected, types, convert = _scalar(field)

    def converted(value: Any) -> Any:
        if value is None:
            return field.default_value
        # A bool is an int to Python.
        if not isinstance(value, types) or (isinstance(value, bool) and types != (bool,)):
            raise _mismatch(full_name, expected, value)
        try:
            return convert(value)
        except (ValueError, OverflowError) as e:
            raise _mismatch(full_name, expected, value) from e

    return converted


def _scalar(field: FieldDescriptor) -> tuple[str, tuple[type, ...], Convert]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return "base64", (str,), _bytes
        case FieldDescriptor.CPPTYPE_STRING:
            return "a text", (str,), _text
        case FieldDescriptor.CPPTYPE_BOOL:
            return "true or false", (bool,), bool
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return "a number", (int, float), float
        case _:
            return "an integer", (int, float), _integer


def _integer(value: float) -> int:
    if value != int(value):
        raise ValueError("has a fraction")
    return int(value)


def _text(value: str) -> str:
    # Half of a surrogate pair cannot stand in a message; Go reads it as the replacement character.
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _bytes(value: str) -> bytes:
    try:
        return base64.b64decode(value.replace("\r", "").replace("\n", ""), validate=True)
    except binascii.Error as e:
        raise ValueError("not base64") from e


def _map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """The value of a map field with texts as keys, which is the only kind of map on the wire."""
    entry = field.message_type
    if entry is None or not field.is_repeated or not entry.GetOptions().map_entry:
        return None
    if entry.fields_by_name["key"].type != FieldDescriptor.TYPE_STRING:
        raise TypeError(f"{field.full_name}: keys of stored maps are texts")
    return entry.fields_by_name["value"]


def _mismatch(name: str, expected: str, value: object) -> ValueError:
    return ValueError(f"{name}: expected {expected}, found {type(value).__name__}")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
