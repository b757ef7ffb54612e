# SPDX-License-Identifier: Apache-2.0
"""No fuzzed request makes a service fail with an internal error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecd.controlplane.api import api_service, piped_service, web_authorization, web_service
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.model.errors import PipecdError
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.wire.credentials import Metadata, api_key, piped_token
from pipecd.wire.status import to_status
from pipecd.wire.table import RpcTable

SERVICES = {
    "piped": piped_service.SERVICE,
    "external": api_service.SERVICE,
    "web": web_authorization.SERVICE,
}
NUMBERS = st.sampled_from([0, 1, 2, 5, 7, -1, 2**31 - 1, -(2**31)])
BIG = st.one_of(NUMBERS, st.sampled_from([2**63 - 1, -(2**63), 253402300800]))
# The ids of existing objects, known before the requests are generated.
PIPED, APPLICATION, DEPLOYMENT = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2, 3))
TEXTS = st.sampled_from(
    (PIPED, APPLICATION, DEPLOYMENT, "shop", "site", "s1", "v1", "../..", "\0", "e30=")
)
Endpoint = tuple[RpcTable[Any], Metadata]
Fill = Callable[[Message], Message]


@dataclass(frozen=True)
class Call:
    """An RPC and the fields to set on its smallest valid request or on an empty one."""

    rpc: str
    sent: bytes
    near_valid: bool = False


@pytest.fixture
async def endpoints(
    cases: UseCases,
    stores: Stores,
    registered: RegisteredPiped,
    deployment: Deployment,
    admin: User,
) -> dict[str, Endpoint]:
    own = await stores.pipeds.get(registered.id)
    own.id = PIPED
    await stores.pipeds.add(own)
    application = await stores.applications.get(deployment.application_id)
    application.id, application.piped_id = APPLICATION, PIPED
    await stores.applications.add(application)
    deployment.id, deployment.application_id, deployment.piped_id = DEPLOYMENT, APPLICATION, PIPED
    await stores.deployments.add(deployment)
    key = await cases.api_keys.generate("fuzz", APIKey.READ_WRITE, by=admin)
    token = piped_token(admin.project, PIPED, registered.key)
    return {
        "piped": (piped_service.piped_table(cases), [("authorization", token)]),
        "external": (api_service.api_table(cases), [("authorization", api_key(key))]),
        "web": (
            web_service.web_table(cases),
            [("cookie", f"token={cases.sessions.issue(admin)}")],
        ),
    }


KNOWN = {
    "piped_id": PIPED,
    "application_id": APPLICATION,
    "deployment_id": DEPLOYMENT,
    "stage_id": "s1",
    "project_id": "shop",
    "repo_id": "site",
}


ODD_VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_INT64: BIG,
    FieldDescriptor.CPPTYPE_UINT32: st.sampled_from([0, 1, 2**32 - 1]),
}


def values_of(field: Any) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=20)
    if field.name in KNOWN:
        return st.one_of(*[st.just(KNOWN[field.name])] * 3, TEXTS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.one_of(TEXTS, st.text(max_size=6))
    return ODD_VALUES.get(field.cpp_type, NUMBERS)


def scribble(draw: st.DrawFn, message: Message, depth: int = 0) -> None:
    """Sets some fields of a message to unusual values."""
    for field in message.DESCRIPTOR.fields:
        if draw(st.sampled_from((True, False, True))):
            continue
        if field.message_type is None and not field.is_repeated:
            setattr(message, field.name, draw(values_of(field)))
        elif field.message_type is None:
            getattr(message, field.name).append(draw(values_of(field)))
        elif depth < 3 and field.message_type.GetOptions().map_entry:
            scribble_map(draw, message, field)
        elif depth < 3:
            inner = getattr(message, field.name)
            scribble(draw, inner.add() if field.is_repeated else inner, depth + 1)


def scribble_map(draw: st.DrawFn, message: Message, field: Any) -> None:
    entries = getattr(message, field.name)
    key, value = draw(st.text(max_size=4)), field.message_type.fields_by_name["value"]
    if value.message_type is not None:
        _ = entries[key]
    else:
        entries[key] = draw(values_of(value))


def aimed(message: Message) -> Message:
    """The message with the ids of existing objects."""
    for field, value in message.ListFields():
        if field.name in KNOWN:
            setattr(message, field.name, KNOWN[field.name])
        elif field.message_type is not None and not field.is_repeated:
            aimed(value)
    return message


async def is_answered(endpoint: Endpoint, service: str, call: Call, minimal_message: Fill) -> None:
    table, metadata = endpoint
    request = call.sent
    if call.near_valid:
        rpc = SERVICES[service].methods_by_name[call.rpc]
        # Protobuf merges concatenated messages.
        valid = aimed(minimal_message(GetMessageClass(rpc.input_type)()))
        request = valid.SerializeToString() + call.sent
    try:
        await (await table.admit(call.rpc, metadata))(request)
    except PipecdError as e:
        code, message = to_status(e)
        assert code is not grpc.StatusCode.INTERNAL, message


@st.composite
def odd_calls(draw: st.DrawFn, service: str) -> Call:
    rpc = draw(st.sampled_from(list(SERVICES[service].methods)))
    request = GetMessageClass(rpc.input_type)()
    scribble(draw, request)
    return Call(rpc.name, request.SerializeToString(), draw(st.booleans()))


def odd_bytes(service: str) -> st.SearchStrategy[Call]:
    names = [rpc.name for rpc in SERVICES[service].methods]
    return st.builds(Call, st.sampled_from(names), st.binary(max_size=60))


many = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@many
@given(call=st.one_of(odd_calls("piped"), odd_bytes("piped")))
async def test_piped_service_answers_fuzzed_requests(
    endpoints: dict[str, Endpoint], minimal_message: Fill, call: Call
) -> None:
    await is_answered(endpoints["piped"], "piped", call, minimal_message)


@many
@given(call=st.one_of(odd_calls("external"), odd_bytes("external")))
async def test_api_service_answers_fuzzed_requests(
    endpoints: dict[str, Endpoint], minimal_message: Fill, call: Call
) -> None:
    await is_answered(endpoints["external"], "external", call, minimal_message)


@many
@given(call=st.one_of(odd_calls("web"), odd_bytes("web")))
async def test_web_service_answers_fuzzed_requests(
    endpoints: dict[str, Endpoint], minimal_message: Fill, call: Call
) -> None:
    await is_answered(endpoints["web"], "web", call, minimal_message)


@pytest.mark.parametrize("service", [pytest.param(name, id=name) for name in SERVICES])
async def test_every_rpc_answers_its_smallest_valid_request(
    endpoints: dict[str, Endpoint], minimal_message: Fill, service: str
) -> None:
    for rpc in SERVICES[service].methods:
        await is_answered(
            endpoints[service], service, Call(rpc.name, b"", near_valid=True), minimal_message
        )
