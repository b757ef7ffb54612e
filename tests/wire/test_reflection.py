# SPDX-License-Identifier: Apache-2.0
"""Server reflection describes the services; it is off by default."""

import builtins
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2 as pb

from pipecd.model.errors import UserMistake
from pipecd.wire.server import ServerOptions, grpc_server
from pipecd.wire.table import RpcTable

NAME = "grpc.service.apiservice.APIService"


async def ask(
    channel: grpc.aio.Channel, version: str, *requests: pb.ServerReflectionRequest
) -> list[Any]:
    call: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )

    async def stream() -> AsyncIterator[pb.ServerReflectionRequest]:
        for request in requests:
            yield request

    return [answer async for answer in call(stream())]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_a_tool_learns_the_services_and_their_messages(
    table: RpcTable[str], version: str
) -> None:
    async with (
        grpc_server(
            [table], host="127.0.0.1", port=0, grace=0, options=ServerOptions(reflection=True)
        ) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        listed, described, unknown = await ask(
            channel,
            version,
            pb.ServerReflectionRequest(list_services=""),
            pb.ServerReflectionRequest(file_containing_symbol=NAME),
            pb.ServerReflectionRequest(file_containing_symbol="no.such.Thing"),
        )
    names = [service.name for service in listed.list_services_response.service]
    assert names == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        NAME,
    ]
    # What was described suffices to build the service anew, elsewhere.
    pool = descriptor_pool.DescriptorPool()
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in described.file_descriptor_response.file_descriptor_proto
    ]
    while files:
        file = next(f for f in files if not {d.name for d in files} & set(f.dependency))
        files.remove(file)
        pool.AddSerializedFile(file.SerializeToString())
    service: Any = pool.FindServiceByName(NAME)
    assert service.methods_by_name["GetCommand"].input_type.fields_by_name["command_id"].number == 1
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_a_server_keeps_silent_by_default(table: RpcTable[str]) -> None:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            # A message that is sent after the refusal would be an internal error of grpc.aio.
            await ask(channel, "v1alpha")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_without_grpcio_reflection_the_error_names_the_package(
    table: RpcTable[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("grpc_reflection"):
            raise ModuleNotFoundError(name)
        return usual(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "pipecd.wire.reflection", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserMistake, match="needs the package grpcio-reflection"):
        async with grpc_server(
            [table], host="127.0.0.1", port=0, options=ServerOptions(reflection=True)
        ):
            pass
