# SPDX-License-Identifier: Apache-2.0
"""Requests of any RPC, built from its descriptor: the smallest valid one, and fuzzed ones."""

import random
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pipecd.proto import rules_pb2
from servers.varint import varint


def fill_required(message: Message) -> Message:
    """Fills the fields of a message that its validation rules require."""
    for field in message.DESCRIPTOR.fields:
        rules = field.GetOptions().Extensions[rules_pb2.rules]
        if field.is_repeated:
            _fill_many(message, field, rules)
        elif field.message_type is not None:
            if rules.required:
                inner = getattr(message, field.name)
                inner.SetInParent()
                fill_required(inner)
        elif (value := _value(field, rules)) is not None:
            setattr(message, field.name, value)
    return message


def _fill_many(message: Message, field: Any, rules: rules_pb2.FieldRules) -> None:
    values = getattr(message, field.name)
    if rules.min_pairs:
        _ = values["key"]
    elif not rules.min_items:
        return
    elif field.message_type is not None:
        fill_required(values.add())
    else:
        values.append("x" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else 1)


def _value(field: Any, rules: rules_pb2.FieldRules) -> str | int | None:
    if getattr(rules, "in"):
        return getattr(rules, "in")[0]
    if rules.in_number:
        return rules.in_number[0]
    if (
        field.cpp_type == FieldDescriptor.CPPTYPE_STRING
        and field.type != FieldDescriptor.TYPE_BYTES
    ):
        return rules.prefix + "x" * max(rules.min_len, 2 if rules.pattern else 0)
    return 1 if rules.HasField("gt") else None


ODD_TEXTS = (
    "", "x", "shop", "site", "s1", "v1", "v0.50.0", "../../etc/passwd", "a/b", "a\0b", "\ud7ff", "e30=",
    "'; DROP TABLE Project; --", "{{7*7}}", "<script>", "%s%n", "é" * 300, "0" * 5000, "Admin", "KUBERNETES",
    "DEPLOYMENT_SUCCESS", "-1", "00000000-0000-0000-0000-000000000000", "eyJJZCI6IngiLCJVcGRhdGVkQXQiOjF9",
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 5, 7, 100, -1, 2**31 - 1, -(2**31))
LARGE = (*NUMBERS, 2**63 - 1, -(2**63), 253402300800, 1_700_000_000)


def with_known_ids(message: Message, known: Mapping[str, str]) -> Message:
    """Sets the required fields that hold ids to those of existing objects."""
    for field, value in message.ListFields():
        if field.name in known:
            setattr(message, field.name, known[field.name])
        elif field.message_type is not None and not field.is_repeated:
            with_known_ids(value, known)
    return message


class RequestFuzzer:
    """Generates fuzzed requests for an RPC, some of them with the `known` ids of objects."""

    TEXTS = ODD_TEXTS

    def __init__(self, seed: int | str, known: dict[str, str]) -> None:
        self.random, self.known = random.Random(seed), known
        self._ways = (
            self.noise, self.cut, self.bloated, self.mistyped, self.scribbled, self.scribbled,
            self.nearly_right, self.nearly_right, self.nearly_right,
        )  # fmt: skip

    def request(self, rpc: MethodDescriptor) -> bytes:
        return self.random.choice(self._ways)(rpc)

    def noise(self, _rpc: MethodDescriptor) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 3, 20, 200, 3000)))

    def cut(self, rpc: MethodDescriptor) -> bytes:
        whole = self.scribbled(rpc) + self.right(rpc).SerializeToString()
        return whole[: self.random.randrange(len(whole) + 1)]

    def bloated(self, rpc: MethodDescriptor) -> bytes:
        """Very long texts, lists and nested messages, seldom over the size limit."""
        number = self.random.choice([f.number for f in rpc.input_type.fields] or [1])
        size = self.random.choice((10_000, 100_000, 1_000_000) + (4_300_000,) * (self._one_in(40)))
        match self.random.randrange(3):
            case 0:
                return field_of(number, 2, counted(b"a" * size))
            case 1:
                return field_of(number, 2, counted(b"ab")) * (size // 50)
            case _:
                nest = b""
                for _ in range(min(size // 100, 1500)):
                    nest = field_of(number, 2, counted(nest))
                return nest

    def mistyped(self, rpc: MethodDescriptor) -> bytes:
        """Every field with a wrong or invalid wire type."""
        return b"".join(
            field_of(field.number, self.random.randrange(8), self.random.randbytes(9))
            for field in rpc.input_type.fields
        )

    def scribbled(self, rpc: MethodDescriptor) -> bytes:
        message = GetMessageClass(rpc.input_type)()
        self._scribble(message)
        return message.SerializeToString()

    def nearly_right(self, rpc: MethodDescriptor) -> bytes:
        # Protobuf merges concatenated messages.
        message = GetMessageClass(rpc.input_type)()
        self._scribble(message, share=0.15)
        return self.right(rpc).SerializeToString() + message.SerializeToString()

    def right(self, rpc: MethodDescriptor) -> Message:
        return with_known_ids(fill_required(GetMessageClass(rpc.input_type)()), self.known)

    def text(self) -> str:
        if self._one_in(3):
            return self.random.choice([*self.known.values()])
        return self.random.choice(ODD_TEXTS)

    def _scribble(self, message: Message, depth: int = 0, share: float = 0.4) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.random.random() > share:
                continue
            if field.message_type is None and not field.is_repeated:
                setattr(message, field.name, self._value(field))
            elif field.message_type is None:
                values = [self._value(field) for _ in range(self.random.randrange(3))]
                getattr(message, field.name).extend(values)
            elif field.message_type.GetOptions().map_entry:
                self._fill_map(getattr(message, field.name), field)
            elif depth < 3:
                inner = getattr(message, field.name)
                inner = inner.add() if field.is_repeated else inner
                if not field.is_repeated:
                    inner.SetInParent()
                self._scribble(inner, depth + 1, share)

    def _fill_map(self, entries: Any, field: Any) -> None:
        value = field.message_type.fields_by_name["value"]
        for _ in range(self.random.randrange(3)):
            if value.message_type is not None:
                _ = entries[self.text()]
            else:
                entries[self.text()] = self._value(value)

    def _value(self, field: Any) -> Any:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return self.random.randbytes(self.random.randrange(20))
            case FieldDescriptor.CPPTYPE_STRING:
                known = self.known.get(field.name)
                return known if known and self._one_in(2) else self.text()
            case FieldDescriptor.CPPTYPE_BOOL:
                return self._one_in(2)
            case FieldDescriptor.CPPTYPE_INT64:
                return self.random.choice(LARGE)
            case FieldDescriptor.CPPTYPE_UINT32:
                return self.random.choice((0, 1, 2**32 - 1))
            case _:
                return self.random.choice(NUMBERS)

    def _one_in(self, many: int) -> bool:
        return self.random.randrange(many) == 0


def field_of(number: int, wire: int, payload: bytes) -> bytes:
    return varint(number << 3 | wire) + payload


def counted(payload: bytes) -> bytes:
    return varint(len(payload)) + payload
