# SPDX-License-Identifier: Apache-2.0
"""Checks a request against the rules written beside its fields in the .proto files.

Every message type is compiled once into a tuple of checks in declaration order; the first violation
is told in upstream's words, because clients show them and tests of others compare them.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pipecd.model.errors import UserMistake
from pipecd.proto import rules_pb2
from pipecd.proto.rules_pb2 import FieldRules

# Given a value, the reason why it is refused, or nothing.
Reason = Callable[[Any], str]
# Given a message, its first violation as "invalid Msg.Field: reason", or nothing.
Check = Callable[[Message], str]

EMBEDDED = "embedded message failed validation"

# Upstream's rule is > 0, but its own console never fills this in, so nobody could ever save it.
_MAY_BE_ZERO = frozenset({"model.ProjectSSOConfig.session_ttl"})


def check(message: Message) -> None:
    """Refuses a request that breaks a rule of its fields or of any message inside it."""
    if fault := first_fault(message):
        raise UserMistake(f"invalid request: {fault}")


def first_fault(message: Message) -> str:
    """The first violation in declaration order, or an empty text."""
    for check_field in _checks(message.DESCRIPTOR):
        if fault := check_field(message):
            return fault
    return ""


@cache
def _checks(descriptor: Descriptor) -> tuple[Check, ...]:
    found = (_field_check(field) for field in descriptor.fields)
    return tuple(c for c in found if c is not None)


def _field_check(field: FieldDescriptor) -> Check | None:
    rules = rules_of(field)
    if is_map(field):
        return _map_check(field, rules)
    if field.is_repeated:
        return _list_check(field, rules)
    if field.message_type is not None:
        return _message_check(field, rules)
    return _scalar_check(field, rules)


def _scalar_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    reason_of = _value_reason(field, rules)
    if reason_of is None:
        return None
    name, where, may_be_zero = field.name, _where(field), field.full_name in _MAY_BE_ZERO

    def scalar(message: Message) -> str:
        value = getattr(message, name)
        if may_be_zero and value == 0:
            return ""
        reason = reason_of(value)
        return f"invalid {where}: {reason}" if reason else ""

    return scalar


def _message_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    embedded = _has_checks(field.message_type)
    if not (rules.required or embedded):
        return None
    name, where, required = field.name, _where(field), rules.required

    def message_field(message: Message) -> str:
        if not message.HasField(name):
            return f"invalid {where}: value is required" if required else ""
        if embedded and (cause := first_fault(getattr(message, name))):
            return f"invalid {where}: {EMBEDDED} | caused by: {cause}"
        return ""

    return message_field


def _list_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    size_reason = _size_reason(rules)
    element_reason = _element_reason(field, rules.items)
    if size_reason is None and element_reason is None:
        return None
    name, where = field.name, _where(field)

    def list_field(message: Message) -> str:
        elements = getattr(message, name)
        if size_reason and (reason := size_reason(len(elements))):
            return f"invalid {where}: {reason}"
        if element_reason:
            for index, element in enumerate(elements):
                if reason := element_reason(element):
                    return f"invalid {where}[{index}]: {reason}"
        return ""

    return list_field


def _map_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    key, value = entry_of(field)
    fewest = rules.min_pairs
    key_reason = _value_reason(key, rules.keys)
    value_reason = _element_reason(value, rules.values)
    if not (fewest or key_reason or value_reason):
        return None
    name, where = field.name, _where(field)

    def map_field(message: Message) -> str:
        entries = getattr(message, name)
        if len(entries) < fewest:
            return f"invalid {where}: value must contain at least {fewest} pair(s)"
        for key in sorted(entries):
            reason = key_reason(key) if key_reason else ""
            if not reason and value_reason:
                reason = value_reason(entries[key])
            if reason:
                return f"invalid {where}[{key}]: {reason}"
        return ""

    return map_field


def _element_reason(field: FieldDescriptor, rules: FieldRules) -> Reason | None:
    if field.message_type is None:
        return _value_reason(field, rules)
    if not _has_checks(field.message_type):
        return None

    def embedded(element: Message) -> str:
        cause = first_fault(element)
        return f"{EMBEDDED} | caused by: {cause}" if cause else ""

    return embedded


def _size_reason(rules: FieldRules) -> Reason | None:
    fewest = rules.min_items
    if rules.HasField("max_items"):
        most = rules.max_items
        told = f"value must contain between {fewest} and {most} items, inclusive"
        return lambda size: "" if fewest <= size <= most else told
    if fewest:
        return lambda size: (
            "" if size >= fewest else f"value must contain at least {fewest} item(s)"
        )
    return None


def _value_reason(field: FieldDescriptor, rules: FieldRules) -> Reason | None:
    """The rules of one scalar value, in the order in which upstream applies them."""
    reasons = [*_choice_reasons(field, rules), *_text_reasons(rules), *_number_reasons(rules)]
    if not reasons:
        return None
    if len(reasons) == 1:
        return reasons[0]

    def first(value: Any) -> str:
        return next((told for r in reasons if (told := r(value))), "")

    return first


def _choice_reasons(field: FieldDescriptor, rules: FieldRules) -> Sequence[Reason]:
    reasons: list[Reason] = []
    choices = frozenset([*getattr(rules, "in"), *rules.in_number])
    if choices:
        listed = " ".join(str(c) for c in [*getattr(rules, "in"), *rules.in_number])
        told = f"value must be in list [{listed}]"
        reasons.append(lambda value: "" if value in choices else told)
    if rules.defined_only and field.enum_type is not None:
        defined = frozenset(field.enum_type.values_by_number)
        reasons.append(
            lambda value: "" if value in defined else "value must be one of the defined enum values"
        )
    return reasons


def _text_reasons(rules: FieldRules) -> Sequence[Reason]:
    reasons: list[Reason] = []
    if fewest := rules.min_len:
        told_length = f"value length must be at least {fewest} runes"
        reasons.append(lambda value: "" if len(value) >= fewest else told_length)
    if prefix := rules.prefix:
        told_prefix = f'value does not have prefix "{prefix}"'
        reasons.append(lambda value: "" if value.startswith(prefix) else told_prefix)
    if rules.pattern:
        expression = _go_expression(rules.pattern)
        told_pattern = f'value does not match regex pattern "{rules.pattern}"'
        reasons.append(lambda value: "" if expression.search(value) else told_pattern)
    return reasons


def _number_reasons(rules: FieldRules) -> Sequence[Reason]:
    reasons: list[Reason] = []
    if rules.HasField("gt"):
        above = rules.gt
        reasons.append(lambda n: "" if n > above else f"value must be greater than {above:g}")
    if rules.HasField("gte"):
        least = rules.gte
        told = f"value must be greater than or equal to {least:g}"
        reasons.append(lambda n: "" if n >= least else told)
    return reasons


def _go_expression(pattern: str) -> re.Pattern[str]:
    # In Go `$` means the end of the text, while Python lets a final newline slip through.
    return re.compile(re.sub(r"\$$", r"\\Z", pattern))


def rules_of(field: FieldDescriptor) -> FieldRules:
    """The rules written beside a field, empty when there are none."""
    return field.GetOptions().Extensions[rules_pb2.rules]


def is_map(field: FieldDescriptor) -> bool:
    return (
        field.message_type is not None
        and field.is_repeated
        and field.message_type.GetOptions().map_entry
    )


def entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """The key and the value of a map field."""
    if field.message_type is None:
        raise TypeError(f"{field.full_name} is not a map")
    entry = field.message_type.fields_by_name
    return entry["key"], entry["value"]


@cache
def _has_checks(descriptor: Descriptor) -> bool:
    """Whether the message or one it can contain has a rule; others need not be walked."""
    seen, waiting = {descriptor}, [descriptor]
    while waiting:
        for field in waiting.pop().fields:
            if field.GetOptions().HasExtension(rules_pb2.rules):
                return True
            inner = field.message_type
            if inner is not None and inner not in seen:
                seen.add(inner)
                waiting.append(inner)
    return False


def _where(field: FieldDescriptor) -> str:
    return f"{_go_type(field.containing_type)}.{go_name(field.name)}"


def _go_type(descriptor: Descriptor | None) -> str:
    names: list[str] = []
    current = descriptor
    while current is not None:
        names.append(go_name(current.name))
        current = current.containing_type
    return "_".join(reversed(names))


def go_name(name: str) -> str:
    """The name Go gives to a field: piped_id becomes PipedId, metadata_v2 becomes MetadataV2."""
    return re.sub(r"(?:^|_)([a-z])|(?<=\d)([a-z])", lambda m: m[0].lstrip("_").upper(), name)
