# SPDX-License-Identifier: Apache-2.0
"""Messages as the JSON documents that upstream stores in its database, files and cache.

The form is that of Go's encoding/json, not proto JSON: keys are the field names of the .proto files
in declaration order, zero values are left out, enums and 64-bit integers are numbers. The codec of
a message type is compiled once from its descriptor.
"""

import base64
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

# Go escapes these so that a document can be embedded in HTML and JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def to_json(message: Message, *, extra: str | None = None) -> str:
    """Returns the stored form of a message; `extra` is what upstream stores as `_extra`."""
    written = _object(message)
    if extra is not None:
        comma = "," if len(written) > 2 else ""
        written = f'{written[:-1]}{comma}"_extra":{_string(extra)}}}'
    # These characters occur only inside JSON strings, so the whole document can be translated.
    if any(chr(character) in written for character in _ESCAPED):
        return written.translate(_ESCAPED)
    return written


def from_json(text: str | bytes, message_type: type[M]) -> M:
    """Reads a stored document; unknown keys are ignored and the case of keys does not matter."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    message = message_type()
    _fill(message, json.loads(text, parse_constant=_reject_constant))
    return message


def _object(message: Message) -> str:
    writers, is_in_order = _writers(message.DESCRIPTOR)
    # Lists only the fields that are set, like Go's omitempty.
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
    """Returns a writer for each field, and whether field numbers follow the declaration order."""
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
        FieldDescriptor.CPPTYPE_FLOAT: lambda value: _float(value, _shortest_float32(value)),
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


def _shortest_float32(value: float) -> str:
    """Returns the fewest digits that identify this 32-bit number."""
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
        # Go does not change a field when its value is null.
        if read is not None and value is not None:
            read(message, value)


@cache
def _readers(descriptor: Descriptor) -> Mapping[str, Reader]:
    by_name = {field.name: _reader(field) for field in descriptor.fields}
    return {name.lower(): read for name, read in by_name.items()} | by_name


def _reader(field: FieldDescriptor) -> Reader:
    name = field.name
    if field.is_repeated:
        return _collection_reader(field)
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:

        def read_message(message: Any, value: Any) -> None:
            inner = getattr(message, name)
            inner.SetInParent()
            _fill(inner, value)

        return read_message
    convert = _converter(field)
    return lambda message, value: setattr(message, name, convert(value))


def _collection_reader(field: FieldDescriptor) -> Reader:
    """Returns the reader of a list or map."""
    name, full_name, map_value = field.name, field.full_name, _map_value(field)
    element = map_value or field
    holds_messages = element.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    convert = _converter(element)

    def read_map(message: Any, values: Any) -> None:
        if not isinstance(values, dict):
            raise _mismatch(full_name, "an object", values)
        entries = getattr(message, name)
        for key, value in cast("dict[str, Any]", values).items():
            if holds_messages:
                _fill(entries[_text(key)], {} if value is None else value)
            else:
                entries[_text(key)] = convert(value)

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

    return read_list if map_value is None else read_map


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
    # Half of a surrogate pair is invalid in a message; Go reads it as the replacement character.
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _bytes(value: str) -> bytes:
    try:
        return base64.b64decode(value.replace("\r", "").replace("\n", ""), validate=True)
    except ValueError as e:
        raise ValueError("not base64") from e


def _map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """Returns the value field of a map; every stored map has texts as keys."""
    entry = field.message_type
    if entry is None or not field.is_repeated or not entry.GetOptions().map_entry:
        return None
    if entry.fields_by_name["key"].type != FieldDescriptor.TYPE_STRING:
        raise TypeError(f"{field.full_name}: keys of stored maps are texts")
    return entry.fields_by_name["value"]


def _mismatch(name: str, expected: str, value: object) -> ValueError:
    return ValueError(f"{name}: expected {expected}, found {type(value).__name__}")


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
