# SPDX-License-Identifier: Apache-2.0
"""Messages survive a round trip through the JSON that upstream stores."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, symbol_database
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.model.document import from_json, to_json
from pipecd.proto.model import (
    analysis_pb2,
    apikey_pb2,
    application_pb2,
    chain_pb2,
    command_pb2,
    deployment_pb2,
    event_pb2,
    insight_pb2,
    livestate_pb2,
    logblock_pb2,
    piped_pb2,
    planpreview_pb2,
    project_pb2,
    trace_pb2,
)
from pipecd.proto.service import web_pb2

VECTORS = Path(__file__).parent.parent / "spec" / "vectors"
DOCUMENTS = json.loads((VECTORS / "mysql_documents.json").read_text())["documents"]
OBJECTS = json.loads((VECTORS / "storage_objects.json").read_text())
TABLES: dict[str, type[Message]] = {
    "Project": project_pb2.Project,
    "Application": application_pb2.Application,
    "Deployment": deployment_pb2.Deployment,
    "Command": command_pb2.Command,
    "Piped": piped_pb2.Piped,
    "APIKey": apikey_pb2.APIKey,
    "Event": event_pb2.Event,
    "DeploymentChain": chain_pb2.DeploymentChain,
    "DeploymentTrace": trace_pb2.DeploymentTrace,
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["table"])
def test_rows_of_upstream_are_written_to_the_byte_and_read(document: Any) -> None:
    message_type = TABLES[document["table"]]
    message = message_type.FromString(base64.b64decode(document["proto_base64"]))
    extra = json.loads(document["data_json"])["_extra"]
    assert to_json(message, extra=extra) == document["data_json"]
    assert from_json(document["data_json"], message_type) == message
    assert from_json(document["data_json"].encode(), message_type) == message


def test_every_table_has_a_row_among_the_vectors() -> None:
    assert {d["table"] for d in DOCUMENTS} == set(TABLES)


def stored_messages() -> list[Any]:
    """The encodings of single messages among the objects that upstream stores."""
    kinds: dict[str, type[Message]] = {
        "application-live-state": livestate_pb2.ApplicationLiveStateSnapshot,
        "latest-analysis-result": analysis_pb2.AnalysisResult,
        "command-output": planpreview_pb2.PlanPreviewCommandResult,
        "command:": command_pb2.Command,
    }
    found: list[Any] = []
    for stored in OBJECTS:
        for prefix, message_type in kinds.items():
            if stored["key"].startswith(prefix):
                found.append(pytest.param(stored["value"], message_type, id=stored["key"]))
        if stored["key"].startswith("log/"):
            for line in stored["value"].splitlines()[:-1]:
                found.append(pytest.param(line, logblock_pb2.LogBlock, id=line))
        if stored["key"].startswith("piped-stage-log:"):
            for block in json.loads(stored["value"])["Blocks"]:
                text = json.dumps(block, separators=(",", ":"))
                text = text.replace("<", "\\u003c").replace(">", "\\u003e")
                assert text in stored["value"]
                found.append(pytest.param(text, logblock_pb2.LogBlock, id=f"cached {text}"))
    return found


@pytest.mark.parametrize(("text", "message_type"), stored_messages())
def test_files_and_cache_entries_of_upstream_survive(
    text: str, message_type: type[Message]
) -> None:
    message = from_json(text, message_type)
    assert message != message_type()
    assert to_json(message) == text


def test_all_kinds_of_stored_messages_are_covered() -> None:
    assert len(stored_messages()) == 10


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param(logblock_pb2.LogBlock(), "{}", id="zero values are left out"),
        pytest.param(
            logblock_pb2.LogBlock(log='a<b>&c\u2028\u2029"\\\n\r\t\b\f\x00\x1f\x7f é😀'),
            '{"log":"a\\u003cb\\u003e\\u0026c\\u2028\\u2029\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001f\x7f é😀"}',
            id="texts are escaped as Go does",
        ),
        pytest.param(
            application_pb2.Application(labels={"b": "1", "é": "2", "B": "3", "<": ""}),
            '{"labels":{"\\u003c":"","B":"3","b":"1","é":"2"}}',
            id="maps are sorted and keep empty values",
        ),
        pytest.param(
            deployment_pb2.Deployment(trigger=deployment_pb2.DeploymentTrigger()),
            '{"trigger":{}}',
            id="a present message is kept even when empty",
        ),
        pytest.param(
            deployment_pb2.Deployment(metadata={"k": "v"}, versions=[{}, {"version": "v1"}]),  # pyright: ignore[reportArgumentType]
            '{"versions":[{},{"version":"v1"}],"metadata":{"k":"v"}}',
            id="empty elements of a list are kept",
        ),
        pytest.param(
            project_pb2.ProjectRBACPolicy(actions=[0, 1, 9]),  # pyright: ignore[reportArgumentType]
            '{"actions":[0,1,9]}',
            id="enums are numbers, also zero and unknown ones in lists",
        ),
        pytest.param(
            planpreview_pb2.ApplicationPlanPreviewResult(plan_details=b"\xff\x00+"),
            '{"plan_details":"/wAr"}',
            id="bytes are padded standard base64",
        ),
        pytest.param(
            logblock_pb2.LogBlock(index=-(2**63), created_at=2**63 - 1),
            '{"index":-9223372036854775808,"created_at":9223372036854775807}',
            id="integers of 64 bits are numbers",
        ),
    ],
)
def test_the_stored_form(message: Message, text: str) -> None:
    assert to_json(message) == text
    assert from_json(text, type(message)) == message


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.1, "0.1"),
        (1.0, "1"),
        (100.0, "100"),
        (-2.5, "-2.5"),
        (1 / 3, "0.33333334"),
        (16777216.0, "16777216"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (1.5e-10, "1.5e-10"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (-3.4028235e38, "-3.4028235e+38"),
    ],
)
def test_single_precision_numbers_are_written_as_go_does(value: float, written: str) -> None:
    point = insight_pb2.InsightDataPoint(value=value)
    assert to_json(point) == f'{{"value":{written}}}'
    assert from_json(to_json(point), insight_pb2.InsightDataPoint) == point


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_without_a_form_in_json_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no form in JSON"):
        to_json(insight_pb2.InsightDataPoint(value=value))


def test_extra_is_the_last_key() -> None:
    assert to_json(event_pb2.Event(name="n"), extra="<n>") == (
        '{"name":"n","_extra":"\\u003cn\\u003e"}'
    )
    assert to_json(event_pb2.Event(), extra="") == '{"_extra":""}'


@pytest.mark.parametrize(
    ("text", "event"),
    [
        pytest.param('{"NAME":"n","Project_ID":"p"}', {"name": "n", "project_id": "p"}, id="case"),
        pytest.param('{"name":"n","later":{"a":[1]}}', {"name": "n"}, id="unknown keys"),
        pytest.param('{"name":null,"labels":null}', {}, id="null leaves a field alone"),
        pytest.param('{"labels":{"a":null}}', {"labels": {"a": ""}}, id="null in a map is empty"),
        pytest.param(' {"status" : 3 }\n', {"status": 3}, id="white space"),
        pytest.param('{"created_at":17e2}', {"created_at": 1700}, id="an exponent"),
        pytest.param('{"name":"\\ud800x"}', {"name": "\ufffdx"}, id="half a surrogate pair"),
        pytest.param('{"name":"\\ud83d\\ude00"}', {"name": "😀"}, id="a whole surrogate pair"),
    ],
)
def test_reading_is_lenient_where_go_is(text: str, event: dict[str, Any]) -> None:
    assert from_json(text, event_pb2.Event) == event_pb2.Event(**event)


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert from_json(b'{"name":"\xff"}', event_pb2.Event).name == "\ufffd"


def test_a_null_element_is_an_empty_message() -> None:
    read = from_json('{"versions":[null]}', deployment_pb2.Deployment)
    assert len(read.versions) == 1


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("[]", "model.Deployment: expected an object, found list"),
        ("null", "model.Deployment: expected an object, found NoneType"),
        ('{"id":1}', "model.Deployment.id: expected a text, found int"),
        ('{"created_at":"1"}', "model.Deployment.created_at: expected an integer, found str"),
        ('{"created_at":true}', "model.Deployment.created_at: expected an integer, found bool"),
        ('{"created_at":1.5}', "model.Deployment.created_at: expected an integer, found float"),
        ('{"created_at":1e999}', "model.Deployment.created_at: expected an integer, found float"),
        ('{"created_at":9223372036854775808}', "out of range"),
        ('{"status":"DEPLOYMENT_PENDING"}', "model.Deployment.status: expected an integer"),
        ('{"stages":{}}', "model.Deployment.stages: expected a list, found dict"),
        ('{"stages":[1]}', "model.PipelineStage: expected an object, found int"),
        ('{"stages":[{"visible":1}]}', "model.PipelineStage.visible: expected true or false"),
        ('{"labels":[]}', "model.Deployment.labels: expected an object, found list"),
        ('{"labels":{"a":1}}', "expected a text, found int"),
        ('{"trigger":"x"}', "model.DeploymentTrigger: expected an object, found str"),
        ('{"created_at":NaN}', "NaN is not JSON"),
        ('{"id":"x"', "delimiter"),
    ],
)
def test_the_error_of_a_broken_document_names_the_position(text: str, error_text: str) -> None:
    with pytest.raises(ValueError, match=error_text):
        from_json(text, deployment_pb2.Deployment)


def test_broken_base64_is_reported() -> None:
    with pytest.raises(ValueError, match="plan_details: expected base64"):
        from_json('{"plan_details":"?"}', planpreview_pb2.ApplicationPlanPreviewResult)


def test_a_map_with_other_keys_than_texts_has_no_stored_form() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="odd.proto", package="odd", syntax="proto3")
    entry = descriptor_pb2.DescriptorProto(name="CountsEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=FieldDescriptor.TYPE_INT32, label=1)  # pyright: ignore[reportArgumentType]
    odd = file.message_type.add(name="Odd", nested_type=[entry])
    counts = odd.field.add(name="counts", number=1, label=3, type_name=".odd.Odd.CountsEntry")  # pyright: ignore[reportArgumentType]
    counts.type = counts.TYPE_MESSAGE
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    message: Any = GetMessageClass(pool.FindMessageTypeByName("odd.Odd"))(counts={1: 2})
    with pytest.raises(TypeError, match=r"odd.Odd.counts: keys of stored maps are texts"):
        to_json(message)


def scalar_values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from(sorted(field.enum_type.values_by_number))
    return {
        FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
        FieldDescriptor.TYPE_BOOL: st.booleans(),
        FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
        # The sign of zero is the one thing that JSON loses; adding zero removes it.
        FieldDescriptor.TYPE_FLOAT: st.floats(allow_nan=False, allow_infinity=False, width=32).map(
            lambda value: value + 0.0
        ),
    }[field.type]


def field_values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    inner = field.message_type
    if inner is None:
        one = scalar_values(field)
    elif inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        return st.dictionaries(scalar_values(key), field_values(value, depth), max_size=2)
    else:
        one = messages(inner, depth - 1)
    return st.lists(one, max_size=2) if field.is_repeated else one


def messages(descriptor: Descriptor, depth: int = 3) -> st.SearchStrategy[Message]:
    """Any message of a type, with nested messages down to a depth."""
    fields = [f for f in descriptor.fields if depth > 0 or f.message_type is None]
    filled = st.fixed_dictionaries({}, optional={f.name: field_values(f, depth) for f in fields})
    return filled.map(lambda values: GetMessageClass(descriptor)(**values))


def all_types() -> list[Descriptor]:
    """Every message type of the model, and one that holds a wrapper of protobuf's own."""
    pool = symbol_database.Default().pool
    found: list[Descriptor] = []
    for module in (*TABLES.values(), livestate_pb2.ApplicationLiveStateSnapshot):
        file = pool.FindFileByName(module.DESCRIPTOR.file.name)
        found.extend(file.message_types_by_name.values())
    found.extend(planpreview_pb2.DESCRIPTOR.message_types_by_name.values())
    found.extend(insight_pb2.DESCRIPTOR.message_types_by_name.values())
    found.append(web_pb2.ListApplicationsRequest.DESCRIPTOR)
    return found


@given(message=st.deferred(lambda: st.sampled_from(all_types()).flatmap(messages)))
@settings(max_examples=300, deadline=None)
def test_any_message_survives_the_round_trip(message: Message) -> None:
    text = to_json(message)
    again = from_json(text, type(message))
    assert again.SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )
    assert to_json(again) == text


@given(message=st.deferred(lambda: messages(deployment_pb2.Deployment.DESCRIPTOR, 2)))
@settings(max_examples=100, deadline=None)
def test_the_text_is_json_with_keys_of_the_proto_files(message: Message) -> None:
    document = json.loads(to_json(message, extra="x"))
    assert set(document) == {field.name for field, _ in message.ListFields()} | {"_extra"}
