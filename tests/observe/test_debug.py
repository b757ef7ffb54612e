# SPDX-License-Identifier: Apache-2.0
"""Profiles are valid profile.proto, decoded here with a descriptor of pprof's own definition."""

import gzip
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pipecd.observe import debug

INT, MESSAGE, STRING = 3, 11, 9
# The fields of profile.proto that readers need: name, number, type, repeated, type name.
MESSAGES: dict[str, list[tuple[str, int, int, bool, str]]] = {
    "Profile": [
        ("sample_type", 1, MESSAGE, True, "ValueType"),
        ("sample", 2, MESSAGE, True, "Sample"),
        ("location", 4, MESSAGE, True, "Location"),
        ("function", 5, MESSAGE, True, "Function"),
        ("string_table", 6, STRING, True, ""),
        ("time_nanos", 9, INT, False, ""),
        ("duration_nanos", 10, INT, False, ""),
        ("period_type", 11, MESSAGE, False, "ValueType"),
        ("period", 12, INT, False, ""),
    ],
    "ValueType": [("type", 1, INT, False, ""), ("unit", 2, INT, False, "")],
    "Sample": [("location_id", 1, 4, True, ""), ("value", 2, INT, True, "")],
    "Location": [("id", 1, 4, False, ""), ("line", 4, MESSAGE, True, "Line")],
    "Line": [("function_id", 1, 4, False, ""), ("line", 2, INT, False, "")],
    "Function": [("id", 1, 4, False, ""), ("name", 2, INT, False, ""), ("filename", 4, INT, False, "")],
}  # fmt: skip


@pytest.fixture
def decode() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", syntax="proto3", package="p")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated, type_name in fields:
            message.field.add(
                name=field,
                number=number,
                type=kind,
                label=3 if repeated else 1,
                type_name=f".p.{type_name}" if type_name else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    profile: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))
    return lambda content: profile.FromString(gzip.decompress(content))


def stacks(profile: Any) -> dict[tuple[str, ...], int]:
    """The samples with the names of their functions and lines."""
    names = {f.id: profile.string_table[f.name] for f in profile.function}
    lines = {
        one.id: f"{names[one.line[0].function_id]}:{one.line[0].line}" for one in profile.location
    }
    return {tuple(lines[id] for id in s.location_id): s.value[0] for s in profile.sample}


def test_samples_keep_their_stacks_counts_and_units(decode: Any) -> None:
    main, work = debug._Frame("app.main", "app.py", 7), debug._Frame("app.work", "app.py", 300)
    content = debug.encode_profile(
        {(work, main): 1000, (main,): 2},
        sample_type=("samples", "count"),
        period=("wall", "nanoseconds", 10_000_000),
        time_nanos=1_700_000_000_000_000_000,
        duration_nanos=5,
    )
    profile = decode(content)
    assert stacks(profile) == {("app.work:300", "app.main:7"): 1000, ("app.main:7",): 2}
    assert profile.string_table[0] == ""
    sample_type, period_type = profile.sample_type[0], profile.period_type
    texts = [sample_type.type, sample_type.unit, period_type.type, period_type.unit]
    assert [profile.string_table[t] for t in texts] == ["samples", "count", "wall", "nanoseconds"]
    assert profile.time_nanos == 1_700_000_000_000_000_000
    assert (profile.period, profile.duration_nanos) == (10_000_000, 5)
    assert {profile.string_table[f.filename] for f in profile.function} == {"app.py"}


async def test_goroutines_are_the_tasks_and_threads(decode: Any) -> None:
    found = stacks(decode(debug.goroutines()))
    assert any("test_goroutines_are" in line for stack in found for line in stack)
    assert sum(found.values()) >= 2


async def test_a_profile_samples_all_threads(decode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "_SECONDS", 0.05)
    assert sum(stacks(decode(await debug.profile())).values()) > 0


def test_the_heap_counts_objects_by_type(decode: Any) -> None:
    assert stacks(decode(debug.heap()))["builtins.function:0",] > 100
