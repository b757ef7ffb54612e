# SPDX-License-Identifier: Apache-2.0
"""Validates requests against the rules that the .proto files declare for their fields.

Every message type is compiled once into a tuple of checks in declaration order. The error names the
first violation in upstream's words, because clients show it and compare it.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pipecd.model.errors import UserMistake
from pipecd.proto import rules_pb2
from pipecd.proto.rules_pb2 import FieldRules

# Returns the reason why a value is invalid, or an empty text.
Reason = Callable[[Any], str]
# Returns the first violation of a message as "invalid Msg.Field: reason", or an empty text.
Check = Callable[[Message], str]

EMBEDDED = "embedded message failed validation"

# Upstream's rule is > 0, but its own console never sets this field and could not save the message.
_MAY_BE_ZERO = frozenset({"model.ProjectSSOConfig.session_ttl"})


def check(message: Message) -> None:
    """Raises UserMistake if a field of the request or of a message inside it breaks a rule."""
    if violation := first_violation(message):
        raise UserMistake(f"invalid request: {violation}")


def first_violation(message: Message) -> str:
    """Returns the first violation in declaration order, or an empty text."""
    for check_field in _checks(message.DESCRIPTOR):
        if violation := check_field(message):
            return violation
    return ""


@cache
def _checks(descriptor: Descriptor) -> tuple[Check, ...]:
    checks: list[Check | None] = []
    for field in descriptor.fields:
        rules = field.GetOptions().Extensions[rules_pb2.rules]
        if is_map(field):
            checks.append(_map_check(field, rules))
        elif field.is_repeated:
            checks.append(_list_check(field, rules))
        elif field.message_type is not None:
            checks.append(_message_check(field, rules))
        else:
            checks.append(_scalar_check(field, rules))
    return tuple(check for check in checks if check is not None)


def _scalar_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    reason_of = _value_reason(field, rules)
    if reason_of is None:
        return None
    name, path, may_be_zero = field.name, _go_path(field), field.full_name in _MAY_BE_ZERO

    def scalar(message: Message) -> str:
        value = getattr(message, name)
        if may_be_zero and value == 0:
            return ""
        reason = reason_of(value)
        return f"invalid {path}: {reason}" if reason else ""

    return scalar


def _message_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    embedded = _has_checks(field.message_type)
    if not (rules.required or embedded):
        return None
    name, path, required = field.name, _go_path(field), rules.required

    def message_field(message: Message) -> str:
        if not message.HasField(name):
            return f"invalid {path}: value is required" if required else ""
        if embedded and (cause := first_violation(getattr(message, name))):
            return f"invalid {path}: {EMBEDDED} | caused by: {cause}"
        return ""

    return message_field


def _list_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    element_reason = _element_reason(field, rules.items)
    least, most = rules.min_items, rules.max_items if rules.HasField("max_items") else None
    if not least and most is None and element_reason is None:
        return None
    size_violation = f"value must contain at least {least} item(s)"
    if most is not None:
        size_violation = f"value must contain between {least} and {most} items, inclusive"
    name, path = field.name, _go_path(field)

    def list_field(message: Message) -> str:
        elements = getattr(message, name)
        size = len(elements)
        if size < least or (most is not None and size > most):
            return f"invalid {path}: {size_violation}"
        if element_reason:
            for index, element in enumerate(elements):
                if reason := element_reason(element):
                    return f"invalid {path}[{index}]: {reason}"
        return ""

    return list_field


def _map_check(field: FieldDescriptor, rules: FieldRules) -> Check | None:
    if field.message_type is None:
        raise TypeError(f"{field.full_name} is not a map")
    entry = field.message_type.fields_by_name
    least = rules.min_pairs
    key_reason = _value_reason(entry["key"], rules.keys)
    value_reason = _element_reason(entry["value"], rules.values)
    if not (least or key_reason or value_reason):
        return None
    name, path = field.name, _go_path(field)

    def map_field(message: Message) -> str:
        entries = getattr(message, name)
        if len(entries) < least:
            return f"invalid {path}: value must contain at least {least} pair(s)"
        for key in sorted(entries):
            reason = key_reason(key) if key_reason else ""
            if not reason and value_reason:
                reason = value_reason(entries[key])
            if reason:
                return f"invalid {path}[{key}]: {reason}"
        return ""

    return map_field


def _element_reason(field: FieldDescriptor, rules: FieldRules) -> Reason | None:
    if field.message_type is None:
        return _value_reason(field, rules)
    if not _has_checks(field.message_type):
        return None

    def embedded(element: Message) -> str:
        cause = first_violation(element)
        return f"{EMBEDDED} | caused by: {cause}" if cause else ""

    return embedded


def _value_reason(field: FieldDescriptor, rules: FieldRules) -> Reason | None:
    """Combines the rules of one scalar value, in the order in which upstream applies them."""
    reasons: list[Reason] = []
    if choices := [*getattr(rules, "in"), *rules.in_number]:
        allowed = frozenset(choices)
        not_listed = f"value must be in list [{' '.join(str(choice) for choice in choices)}]"
        reasons.append(lambda value: "" if value in allowed else not_listed)
    if rules.defined_only and field.enum_type is not None:
        defined = frozenset(field.enum_type.values_by_number)
        undefined = "value must be one of the defined enum values"
        reasons.append(lambda value: "" if value in defined else undefined)
    if least := rules.min_len:
        too_short = f"value length must be at least {least} runes"
        reasons.append(lambda value: "" if len(value) >= least else too_short)
    if prefix := rules.prefix:
        no_prefix = f'value does not have prefix "{prefix}"'
        reasons.append(lambda value: "" if value.startswith(prefix) else no_prefix)
    if rules.pattern:
        # In Go `$` means the end of the text, while Python also allows a newline after it.
        expression = re.compile(re.sub(r"\$$", r"\\Z", rules.pattern))
        no_match = f'value does not match regex pattern "{rules.pattern}"'
        reasons.append(lambda value: "" if expression.search(value) else no_match)
    if rules.HasField("gt"):
        bound, too_small = rules.gt, f"value must be greater than {rules.gt:g}"
        reasons.append(lambda value: "" if value > bound else too_small)
    if rules.HasField("gte"):
        least_number = rules.gte
        below = f"value must be greater than or equal to {least_number:g}"
        reasons.append(lambda value: "" if value >= least_number else below)
    if len(reasons) < 2:
        return reasons[0] if reasons else None

    def first_reason(value: Any) -> str:
        return next((text for reason in reasons if (text := reason(value))), "")

    return first_reason


def is_map(field: FieldDescriptor) -> bool:
    return (
        field.message_type is not None
        and field.is_repeated
        and field.message_type.GetOptions().map_entry
    )


def is_required(field: FieldDescriptor) -> bool:
    """Whether a message without the field is refused."""
    rules = field.GetOptions().Extensions[rules_pb2.rules]
    return bool(rules.required or rules.min_len or rules.min_items or rules.min_pairs)


@cache
def _has_checks(descriptor: Descriptor) -> bool:
    """Whether the message or one it can contain has a rule; others are not traversed."""
    seen, pending = {descriptor}, [descriptor]
    while pending:
        for field in pending.pop().fields:
            if field.GetOptions().HasExtension(rules_pb2.rules):
                return True
            inner = field.message_type
            if inner is not None and inner not in seen:
                seen.add(inner)
                pending.append(inner)
    return False


def _go_path(field: FieldDescriptor) -> str:
    names: list[str] = []
    message = field.containing_type
    while message is not None:
        names.insert(0, go_name(message.name))
        message = message.containing_type
    return f"{'_'.join(names)}.{go_name(field.name)}"


def go_name(name: str) -> str:
    """The name Go gives to a field: piped_id becomes PipedId, metadata_v2 becomes MetadataV2."""
    return re.sub(r"(?:^|_)([a-z])|(?<=\d)([a-z])", lambda m: m[0].lstrip("_").upper(), name)
