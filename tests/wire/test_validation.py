# SPDX-License-Identifier: Apache-2.0
"""Requests are validated by the rules of the .proto files, with upstream's error texts."""

import csv
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import symbol_database
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import pipecd.proto
from pipecd.model.errors import UserMistake
from pipecd.proto.model import application_pb2, deployment_pb2, logblock_pb2, piped_pb2
from pipecd.proto.plugin import deployment_pb2 as plugin_pb2
from pipecd.proto.service import api_pb2
from pipecd.proto.service import piped_pb2 as piped_service_pb2
from pipecd.wire.validation import check, first_violation, go_name

# Importing the generated modules registers every file of the wire.
for module in pkgutil.walk_packages(pipecd.proto.__path__, "pipecd.proto."):
    if module.name.endswith("_pb2"):
        importlib.import_module(module.name)

WIRE = Path(__file__).parent.parent / "spec" / "wire.csv"
RULED = [
    row
    for row in csv.DictReader(WIRE.read_text().splitlines())
    if row["kind"] == "message_field" and row["rules"]
]
PATTERNS = {
    "^[^/].+$": (["ab", "a/b", "..", "é/"], ["", "a", "/a", "/ab", "ab\n"]),
    "^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$": (["a", "a-B-9"], ["", "-", "a-", "-a", "a--b", "a_b", "a\n"]),
}


def descriptor_of(row: Mapping[str, str]) -> Descriptor:
    return symbol_database.Default().pool.FindMessageTypeByName(f"{row['package']}.{row['owner']}")


def field_of(row: Mapping[str, str]) -> FieldDescriptor:
    return descriptor_of(row).fields_by_name[row["name"]]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def valid_scalar(field: FieldDescriptor, rules: str) -> Any:
    """A value that keeps these rules."""
    if field.enum_type is not None:
        number = re.search(r"in=\[(\d+)", rules)
        return int(number[1]) if number else 0
    if field.type == FieldDescriptor.TYPE_STRING:
        choice = re.search(r"in=\[([^|\]]+)", rules)
        prefix = re.search(r"prefix=(\S+)", rules)
        return choice[1] if choice else f"{prefix[1] if prefix else ''}valid0"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"x"
    return field.type == FieldDescriptor.TYPE_BOOL or 1


def valid_value(field: FieldDescriptor, rules: str) -> Any:
    if is_map(field):
        value = field.message_type.fields_by_name["value"]  # pyright: ignore[reportOptionalMemberAccess]
        return {"valid0": valid_value(value, rules)}
    inner = field.message_type
    one = valid_scalar(field, rules) if inner is None else valid_message(inner)
    return [one] if field.is_repeated else one


def valid_message(descriptor: Descriptor) -> Message:
    """A message that keeps every rule of its own fields and of the messages it needs."""
    rows = [r for r in RULED if f"{r['package']}.{r['owner']}" == descriptor.full_name]
    values = {r["name"]: valid_value(field_of(r), r["rules"]) for r in rows}
    return GetMessageClass(descriptor)(**values)


LENGTH = "value length must be at least {} runes"
ENUM = "value must be one of the defined enum values"


Judged = tuple[list[Any], list[tuple[Any, str]]]


def single_cases(rule: str, bound: str) -> Judged:
    """Accepted values, and refused ones with the reason, for one rule of one value."""
    return number_cases(rule, bound) if rule in ("gt", "gte") else text_cases(rule, bound)


def number_cases(rule: str, bound: str) -> Judged:
    if rule == "gt":
        error_text = f"value must be greater than {float(bound):g}"
        return [1], [(0, error_text), (-1, error_text)]
    return [0, 1], [(-1, f"value must be greater than or equal to {bound}")]


def text_cases(rule: str, bound: str) -> Judged:
    match rule:
        case "min_len":
            n = int(bound)
            # Five letters of two bytes each are still too short for six.
            return ["x" * n, "x" * (n + 1)], [("é" * (n - 1), LENGTH.format(n))]
        case "pattern":
            accepted, refused = PATTERNS[bound]
            error_text = f'value does not match regex pattern "{bound}"'
            return list(accepted), [(value, error_text) for value in refused]
        case "prefix":
            error_text = f'value does not have prefix "{bound}"'
            return [bound, f"{bound}1"], [("", error_text), (f"1{bound}", error_text)]
        case "defined_only":
            return [0], [(99, ENUM), (-1, ENUM)]
        case "in":
            choices = bound.strip("[]").split("|")
            error_text = f"value must be in list [{' '.join(choices)}]"
            numbers = all(c.isdigit() for c in choices)
            kept = [int(c) for c in choices] if numbers else choices
            return list(kept), [
                (0 if numbers else "", error_text),
                (9 if numbers else "X", error_text),
            ]
        case _:
            raise AssertionError(f"no cases for the rule {rule}")


Case = tuple[Any, str, str]


def sized_cases(rule: str, bound: str, rules: str, one: Any) -> list[Case]:
    """Cases for the number of elements: value, suffix of the field, reason."""
    most = re.search(r"max_items=(\d+)", rules)
    if rule == "max_items":
        error_text = f"value must contain between 1 and {bound} items, inclusive"
        return [([one] * int(bound), "", ""), ([one] * (int(bound) + 1), "", error_text)]
    if rule == "min_pairs":
        return [({}, "", f"value must contain at least {bound} pair(s)"), ({"k": one}, "", "")]
    error_text = f"value must contain at least {bound} item(s)"
    if most:
        error_text = f"value must contain between {bound} and {most[1]} items, inclusive"
    return [([], "", error_text), ([one], "", "")]


def cases_of(field: FieldDescriptor, rules: str) -> list[Case]:
    """Values of a field with the expected reason, empty when accepted."""
    found: list[Case] = []
    for part in rules.split(" "):
        rule, _, bound = part.partition("=")
        where, _, inner = rule.rpartition(".")
        if rule in ("min_items", "max_items", "min_pairs"):
            one = valid_value(field, rules)
            first = next(iter(one.values())) if isinstance(one, dict) else one[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            found.extend(sized_cases(rule, bound, rules, first))
        elif rule == "required":
            assert field.message_type is not None
            found.append((None, "", "value is required"))
            found.append((valid_message(field.message_type), "", ""))
        else:
            accepted, refused = single_cases(inner or rule, bound)
            for value, reason in [*((a, "") for a in accepted), *refused]:
                found.append(placed(value, where, reason, rules))
    return found


def placed(value: Any, where: str, reason: str, rules: str) -> Case:
    """Puts a value where its rule applies: the field itself, an element, a map key or value."""
    match where:
        case "items":
            return [0, value], "[1]", reason
        case "keys":
            if value == "" and "keys.min_len=1" in rules:
                reason = LENGTH.format(1)
            return {"zz": "x", value: "x"} if reason else {value: "x"}, f"[{value}]", reason
        case "values":
            return {"b": value, "c": value}, "[b]", reason
        case _:
            return value, "", reason


@pytest.mark.parametrize("row", RULED, ids=lambda r: f"{r['owner']}.{r['name']}")
def test_every_rule_of_every_field(row: Mapping[str, str]) -> None:
    descriptor, field = descriptor_of(row), field_of(row)
    where = f"{row['owner'].replace('.', '_')}.{go_name(field.name)}"
    cases = cases_of(field, row["rules"])
    assert any(reason == "" for *_, reason in cases), "no accepted value"
    assert any(reason != "" for *_, reason in cases), "no refused value"
    for value, suffix, reason in cases:
        message = valid_message(descriptor)
        message.ClearField(field.name)
        message.MergeFrom(type(message)(**{field.name: value}))
        is_lenient = where == "ProjectSSOConfig.SessionTtl" and value == 0
        fault = f"invalid {where}{suffix}: {reason}" if reason and not is_lenient else ""
        assert first_violation(message) == fault, (value, row["rules"])


def test_all_fields_with_rules_and_all_kinds_of_rules_are_tried() -> None:
    assert len(RULED) == 443
    kinds = Counter(re.sub(r"=\S*", "", part) for r in RULED for part in r["rules"].split(" "))
    assert set(kinds) == {
        *("required", "min_len", "pattern", "prefix", "in", "defined_only", "gt", "gte"),
        *("min_items", "max_items", "min_pairs", "items.defined_only"),
        *("keys.min_len", "keys.pattern", "values.min_len"),
    }


def test_a_violation_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(UserMistake) as caught:
        check(api_pb2.GetPipedRequest())
    assert str(caught.value) == (
        "invalid request: invalid GetPipedRequest.PipedId: value length must be at least 1 runes"
    )
    check(api_pb2.GetPipedRequest(piped_id="p"))


def block(log: str) -> logblock_pb2.LogBlock:
    return logblock_pb2.LogBlock(index=1, log=log, created_at=1)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        pytest.param(
            piped_service_pb2.ReportStageLogsRequest(
                deployment_id="d", stage_id="s", blocks=[block("a"), block("")]
            ),
            "invalid ReportStageLogsRequest.Blocks[1]: embedded message failed validation"
            " | caused by: invalid LogBlock.Log: value length must be at least 1 runes",
            id="an element of a list",
        ),
        pytest.param(
            plugin_pb2.DetermineVersionsRequest(
                input=plugin_pb2.PlanPluginInput(deployment=deployment_pb2.Deployment())
            ),
            "invalid DetermineVersionsRequest.Input: embedded message failed validation"
            " | caused by: invalid PlanPluginInput.Deployment: embedded message failed validation"
            " | caused by: invalid Deployment.Id: value length must be at least 1 runes",
            id="two levels down",
        ),
        pytest.param(
            plugin_pb2.BuildPipelineSyncStagesRequest(
                stages=[plugin_pb2.BuildPipelineSyncStagesRequest.StageConfig(name="n", index=-1)]
            ),
            "invalid BuildPipelineSyncStagesRequest.Stages[0]: embedded message failed validation"
            " | caused by: invalid BuildPipelineSyncStagesRequest_StageConfig.Index:"
            " value must be greater than or equal to 0",
            id="a nested type is named after the outer one",
        ),
        pytest.param(
            api_pb2.RegisterEventRequest(
                name="n", data="d", labels={"b": "", "a": "x", "": "y", "c": ""}
            ),
            "invalid RegisterEventRequest.Labels[]: value length must be at least 1 runes",
            id="the first key in order, also an empty one",
        ),
        pytest.param(
            api_pb2.RegisterEventRequest(name="n", data="d", labels={"b": "", "a": "x"}),
            "invalid RegisterEventRequest.Labels[b]: value length must be at least 1 runes",
            id="a map value is named by its key",
        ),
        pytest.param(
            piped_pb2.Piped(),
            "invalid Piped.Id: value length must be at least 1 runes",
            id="the first field in declaration order",
        ),
    ],
)
def test_where_a_violation_is_found(message: Message, fault: str) -> None:
    assert first_violation(message) == fault


def test_a_message_without_a_rule_of_its_own_is_checked_when_present() -> None:
    application = valid_message(application_pb2.Application.DESCRIPTOR)
    assert isinstance(application, application_pb2.Application)
    assert first_violation(application) == ""
    application.sync_state.SetInParent()
    assert first_violation(application) == (
        "invalid Application.SyncState: embedded message failed validation"
        " | caused by: invalid ApplicationSyncState.Timestamp: value must be greater than 0"
    )


def test_declaration_order_beats_number_order() -> None:
    fields = deployment_pb2.Deployment.DESCRIPTOR.fields
    assert [f.number for f in fields] != sorted(f.number for f in fields)
    # completed_at (100) is declared after deployment_trace_commit_hash (50) and versions (24).
    deployment = valid_message(deployment_pb2.Deployment.DESCRIPTOR)
    assert isinstance(deployment, deployment_pb2.Deployment)
    deployment.completed_at, deployment.created_at = -1, -1
    assert first_violation(deployment).startswith("invalid Deployment.CompletedAt:")


@pytest.mark.parametrize(
    ("name", "go"),
    [
        ("piped_id", "PipedId"),
        ("id", "Id"),
        ("metadata_v2", "MetadataV2"),
        ("keyValues", "KeyValues"),
        ("sha256sum", "Sha256Sum"),
        ("a_2b", "A_2B"),
    ],
)
def test_fields_have_their_go_names(name: str, go: str) -> None:
    assert go_name(name) == go
