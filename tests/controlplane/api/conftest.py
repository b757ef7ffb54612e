# SPDX-License-Identifier: Apache-2.0
"""The three gRPC services of a control plane on one port, and channels for each kind of caller."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.api.api_service import api_table
from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.api.web_service import web_table
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import api_key, piped_token
from pipecd.wire.server import grpc_server
from servers.rpc_requests import fill_required

Connect = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]


@pytest.fixture
async def connect(cases: UseCases) -> AsyncIterator[Connect]:
    """Opens channels to the services with the given `authorization`."""
    tables = [piped_table(cases), api_table(cases), web_table(cases)]
    async with grpc_server(tables, host="127.0.0.1", port=0, grace=1) as port:

        @asynccontextmanager
        async def opened(authorization: str) -> AsyncIterator[grpc.aio.Channel]:
            address = f"127.0.0.1:{port}"
            async with open_channel(address, authorization=authorization, insecure=True) as channel:
                yield channel

        yield opened


@pytest.fixture
async def piped_channel(
    connect: Connect, registered: RegisteredPiped
) -> AsyncIterator[grpc.aio.Channel]:
    """The channel of the registered piped."""
    async with connect(piped_token("shop", registered.id, registered.key)) as channel:
        yield channel


@pytest.fixture
async def api_channel(
    connect: Connect, cases: UseCases, admin: User
) -> AsyncIterator[grpc.aio.Channel]:
    """The channel of a read-write API key."""
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    async with connect(api_key(key)) as channel:
        yield channel


@pytest.fixture
async def read_only_channel(
    connect: Connect, cases: UseCases, admin: User
) -> AsyncIterator[grpc.aio.Channel]:
    """The channel of a read-only API key."""
    key = await cases.api_keys.generate("reader", APIKey.READ_ONLY, by=admin)
    async with connect(api_key(key)) as channel:
        yield channel


@pytest.fixture
async def web_channel(connect: Connect) -> AsyncIterator[grpc.aio.Channel]:
    """A channel without credentials; each call sends its own cookie."""
    async with connect("") as channel:
        yield channel


@pytest.fixture
def cookie(cases: UseCases) -> Callable[[User], tuple[tuple[str, str], ...]]:
    """The metadata of a signed-in user."""
    return lambda person: (("cookie", f"a=b; token={cases.sessions.issue(person)}"),)


@pytest.fixture
def minimal_message() -> Callable[[Message], Message]:
    """Fills the fields of a message that its validation rules require."""
    return fill_required
