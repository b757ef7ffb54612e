# SPDX-License-Identifier: Apache-2.0
"""The three doors of a control plane on one loopback port, and callers at each of them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pipecd.controlplane.api.external import external_table
from pipecd.controlplane.api.piped import piped_table
from pipecd.controlplane.api.web import web_table
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import Registered
from pipecd.proto import rules_pb2
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import api_key, piped_token
from pipecd.wire.server import grpc_server

Opening = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]


@pytest.fixture
async def opening(cases: UseCases) -> AsyncIterator[Opening]:
    """Opens channels to the doors with an `authorization` of the test's choice."""
    tables = [piped_table(cases), external_table(cases), web_table(cases)]
    async with grpc_server(tables, host="127.0.0.1", port=0, grace=1) as port:

        @asynccontextmanager
        async def opened(authorization: str) -> AsyncIterator[grpc.aio.Channel]:
            address = f"127.0.0.1:{port}"
            async with open_channel(address, authorization=authorization, insecure=True) as channel:
                yield channel

        yield opened


@pytest.fixture
async def piped_channel(opening: Opening, registered: Registered) -> AsyncIterator[Any]:
    """The channel of the registered piped."""
    async with opening(piped_token("shop", registered.id, registered.key)) as channel:
        yield channel


@pytest.fixture
async def program_channel(opening: Opening, cases: UseCases, admin: Person) -> AsyncIterator[Any]:
    """The channel of a program whose key may write."""
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    async with opening(api_key(key)) as channel:
        yield channel


@pytest.fixture
async def reader_channel(opening: Opening, cases: UseCases, admin: Person) -> AsyncIterator[Any]:
    """The channel of a program whose key may only read."""
    key = await cases.api_keys.generate("reader", APIKey.READ_ONLY, by=admin)
    async with opening(api_key(key)) as channel:
        yield channel


@pytest.fixture
async def web_channel(opening: Opening) -> AsyncIterator[Any]:
    """A channel whose calls bring their own cookie."""
    async with opening("") as channel:
        yield channel


@pytest.fixture
def cookie(cases: UseCases) -> Callable[[Person], tuple[tuple[str, str], ...]]:
    """The metadata of a signed-in person."""
    return lambda person: (("cookie", f"a=b; token={cases.sessions.issue(person)}"),)


@pytest.fixture
def smallest() -> Callable[[Message], Message]:
    """Fills a message with as little as its rules demand."""
    return _fill


def _fill(message: Message) -> Message:
    for field in message.DESCRIPTOR.fields:
        rules = field.GetOptions().Extensions[rules_pb2.rules]
        if field.is_repeated:
            _fill_many(message, field, rules)
        elif field.message_type is not None:
            if rules.required:
                inner = getattr(message, field.name)
                inner.SetInParent()
                _fill(inner)
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
        _fill(values.add())
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
