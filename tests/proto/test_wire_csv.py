# SPDX-License-Identifier: Apache-2.0
"""Every message field, enum value and RPC of our .proto files is that of the wire, row by row."""

import csv
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    MethodDescriptor,
)

import pipecd.proto
from pipecd.proto import rules_pb2
from pipecd.proto.model import project_pb2, rbac_pb2

WIRE = Path(__file__).parent.parent / "spec" / "wire.csv"
# What the specification counts: 1036 rows about messages, 171 about enums, 131 RPCs.
COUNT = {"message_field": 1036, "enum_value": 171, "rpc": 131}
# Our own additions and those of the gateway have packages of their own.
OURS = {
    "pipecd.proto",
    "pipecd.ordering",
    "pipecd.lease",
    "pipecd.deploymentchanges",
    "pipecd.deploymentcontrol",
    "pipecd.sessioncontrol",
    "pipecd.pipedlist",
    "pipecd.applicationtargets",
    "pipecd.planpreviewpages",
    "pipecd.batch",
    "pipecd.pluginfailures",
    "pipecd.wakeups",
    "pipecd.livestatechanges",
    "envoy.service.auth.v3",
}
SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_FLOAT: "float",
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    kind: str
    package: str
    owner: str
    name: str
    number: str = ""
    type: str = ""
    label: str = ""
    rules: str = ""
    deprecated: str = "n"

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.package, self.owner, self.name


def expected_rows() -> list[Row]:
    return [Row(**row) for row in csv.DictReader(WIRE.read_text().splitlines())]


def our_rows() -> list[Row]:
    rows: list[Row] = []
    for module in pkgutil.walk_packages(pipecd.proto.__path__, "pipecd.proto."):
        if module.name.endswith("_pb2"):
            file: FileDescriptor = importlib.import_module(module.name).DESCRIPTOR
            if file.package not in OURS:
                rows.extend(rows_of(file))
    return rows


def rows_of(file: FileDescriptor) -> Iterator[Row]:
    for message in file.message_types_by_name.values():
        yield from message_rows(message)
    for enum in file.enum_types_by_name.values():
        yield from enum_rows(enum)
    for extension in file.extensions_by_name.values():
        extended = extension.containing_type
        assert extended is not None
        owner = f"(extension of {extended.full_name})"
        yield replace(field_row(extension), package=file.package, owner=owner)
    for service in file.services_by_name.values():
        for method in service.methods:
            yield rpc_row(method)


def message_rows(message: Descriptor) -> Iterator[Row]:
    for field in message.fields:
        yield field_row(field)
    if not message.fields:
        yield Row(*place("message_field", message), "(no fields)")
    raw = descriptor_pb2.DescriptorProto()
    message.CopyToProto(raw)
    # The end of a range of field numbers is exclusive.
    if reserved := [(r.start, r.end - 1) for r in raw.reserved_range]:
        yield Row(*place("message_field", message), "(reserved)", type=reserved_text(reserved))
    for enum in message.enum_types:
        yield from enum_rows(enum)
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from message_rows(nested)


def enum_rows(enum: EnumDescriptor) -> Iterator[Row]:
    where = place("enum_value", enum)
    for value in enum.values:
        yield Row(*where, value.name, str(value.number), deprecated=flag(value.GetOptions()))
    raw = descriptor_pb2.EnumDescriptorProto()
    enum.CopyToProto(raw)
    # The end of a range of enum numbers is inclusive.
    if reserved := [(r.start, r.end) for r in raw.reserved_range]:
        yield Row(*where, "(reserved)", type=reserved_text(reserved))


def place(kind: str, thing: Descriptor | EnumDescriptor) -> tuple[str, str, str]:
    package = thing.file.package
    return kind, package, thing.full_name.removeprefix(f"{package}.")


def field_row(field: FieldDescriptor) -> Row:
    holder = field.containing_type
    assert holder is not None
    return Row(
        *place("message_field", holder),
        field.name,
        str(field.number),
        type_text(field),
        "map" if is_map(field) else "repeated" if field.is_repeated else "optional",
        rules_text(field.GetOptions().Extensions[rules_pb2.rules], field),
        flag(field.GetOptions()),
    )


def is_map(field: FieldDescriptor) -> bool:
    inner = field.message_type
    return inner is not None and inner.GetOptions().map_entry


def type_text(field: FieldDescriptor) -> str:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        return f"map<{type_text(key)},{type_text(value)}>"
    named = inner or field.enum_type
    return SCALARS[field.type] if named is None else named.full_name


def rules_text(rules: rules_pb2.FieldRules, field: FieldDescriptor, prefix: str = "") -> str:
    parts: list[str] = []
    for rule, value in rules.ListFields():
        name = prefix + rule.name
        match rule.name:
            case "required" | "defined_only":
                parts.append(name)
            case "in" | "in_number":
                parts.append(f"{prefix}in=[{'|'.join(str(v) for v in value)}]")
            case "gt" | "gte":
                is_float = field.type == FieldDescriptor.TYPE_FLOAT
                parts.append(f"{name}={value if is_float else int(value)}")
            case "keys" | "values" | "items":
                parts.append(rules_text(value, field, f"{name}."))
            case _:
                parts.append(f"{name}={value}")
    return " ".join(parts)


def rpc_row(method: MethodDescriptor) -> Row:
    service = method.containing_service
    path = f"/{service.full_name}/{method.name}"
    return Row(
        kind="rpc",
        package=service.file.package,
        owner=service.name,
        name=method.name,
        type=f"{method.input_type.full_name} -> {method.output_type.full_name} @ {path}"
        + (" (stream)" if method.client_streaming or method.server_streaming else ""),
        rules=rbac_text(method),
        deprecated=flag(method.GetOptions()),
    )


def rbac_text(method: MethodDescriptor) -> str:
    options = method.GetOptions()
    if not options.HasExtension(rbac_pb2.rbac):
        return ""
    rbac = options.Extensions[rbac_pb2.rbac]
    if rbac.ignored:
        return "rbac=ignored"
    resource = project_pb2.ProjectRBACResource.ResourceType.Name(rbac.resource)
    return f"rbac={resource}:{project_pb2.ProjectRBACPolicy.Action.Name(rbac.action)}"


def reserved_text(ranges: Sequence[tuple[int, int]]) -> str:
    parts = (str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"reserved {';'.join(parts)}"


def flag(options: Any) -> str:
    return "y" if options.deprecated else "n"


def differences(expected: Sequence[Row], ours: Sequence[Row]) -> list[str]:
    """Rows that are missing, left over, changed, or in another order within their owner."""
    required, present = {r.key: r for r in expected}, {r.key: r for r in ours}
    found = [f"missing: {astuple(r)}" for k, r in required.items() if k not in present]
    found += [f"left over: {astuple(r)}" for k, r in present.items() if k not in required]
    found += [
        f"changed: {astuple(row)} is {astuple(present[key])}"
        for key, row in required.items()
        if key in present and present[key] != row
    ]
    found += [f"doubled: {r.key}" for r in expected if r is not required[r.key]]
    return found or [
        f"other order: {owner}"
        for owner, names in by_owner(expected).items()
        if by_owner(ours).get(owner) != names
    ]


def by_owner(rows: Sequence[Row]) -> dict[tuple[str, ...], list[str]]:
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault(row.key[:3], []).append(row.name)
    return names


@pytest.fixture(scope="module")
def ours() -> list[Row]:
    return our_rows()


def test_every_row_of_the_wire_is_ours(ours: list[Row]) -> None:
    expected = expected_rows()
    assert len(expected) == len(ours) == sum(COUNT.values()) == 1338
    for kind, count in COUNT.items():
        assert sum(row.kind == kind for row in ours) == count
    assert differences(expected, ours) == []


def pick(**values: str) -> Row:
    """The first row with these values; a value that ends with * is a beginning."""
    for row in expected_rows():
        if all(
            getattr(row, column).startswith(value[:-1])
            if value.endswith("*")
            else getattr(row, column) == value
            for column, value in values.items()
        ):
            return row
    raise AssertionError(f"no row like {values}")


FIELD = {"kind": "message_field", "label": "optional"}


@pytest.mark.parametrize(
    ("row", "change"),
    [
        pytest.param(pick(**FIELD), {"name": "other"}, id="the name of a field"),
        pytest.param(pick(**FIELD), {"number": "999"}, id="the number of a field"),
        pytest.param(pick(**FIELD, type="string"), {"type": "bytes"}, id="the type of a field"),
        pytest.param(pick(**FIELD, type="model.*"), {"type": "string"}, id="a message type"),
        pytest.param(pick(label="map"), {"type": "map<string,bool>"}, id="the type of a map"),
        pytest.param(pick(label="repeated"), {"label": "optional"}, id="the label of a field"),
        pytest.param(pick(deprecated="y"), {"deprecated": "n"}, id="the flag deprecated"),
        *(
            pytest.param(pick(kind="message_field", rules=rule), {"rules": ""}, id=f"rule {rule}")
            for rule in sorted({r.rules for r in expected_rows() if r.kind == "message_field"})
            if rule
        ),
        pytest.param(pick(**FIELD, rules=""), {"rules": "min_len=1"}, id="a rule too many"),
        pytest.param(pick(**FIELD, rules="gt=0"), {"rules": "gte=0"}, id="another rule"),
        pytest.param(pick(type="reserved 6-8"), {"type": "reserved 6-7"}, id="reserved numbers"),
        pytest.param(pick(name="(no fields)"), {"name": "id"}, id="an empty message"),
        pytest.param(pick(kind="enum_value"), {"name": "OTHER"}, id="the name of an enum value"),
        pytest.param(pick(kind="enum_value"), {"number": "9"}, id="the number of an enum value"),
        pytest.param(
            pick(kind="enum_value", name="(reserved)"), {"type": "reserved 2"}, id="an enum's gap"
        ),
        pytest.param(pick(kind="rpc"), {"name": "Other"}, id="the name of an RPC"),
        pytest.param(
            pick(kind="rpc"), {"type": "a.B -> c.D @ /e.F/G"}, id="request, response and path"
        ),
        pytest.param(
            pick(kind="rpc", rules="rbac=PIPED:LIST"), {"rules": "rbac=PIPED:GET"}, id="an action"
        ),
        pytest.param(pick(kind="rpc", rules="rbac=ignored"), {"rules": ""}, id="no permission"),
        pytest.param(pick(owner="(extension*"), {"number": "59092"}, id="the extension"),
        pytest.param(pick(owner="(extension*"), {"type": "model.User"}, id="its type"),
    ],
)
def test_a_changed_row_is_noticed(ours: list[Row], row: Row, change: dict[str, str]) -> None:
    corrupted = [replace(r, **change) if r == row else r for r in expected_rows()]
    assert corrupted != expected_rows()
    assert differences(corrupted, ours) != []


def test_a_removed_an_added_and_a_moved_row_are_noticed(ours: list[Row]) -> None:
    rows = expected_rows()
    assert differences(rows[1:], ours) != []
    assert differences([*rows, replace(rows[0], name="more")], ours) != []
    assert differences([*rows, rows[0]], ours) != []
    assert differences([rows[1], rows[0], *rows[2:]], ours) != []
