# SPDX-License-Identifier: Apache-2.0
"""A channel is connected when it is returned, or the error says why not."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.proto.service import api_pb2, api_pb2_grpc
from pipecd.wire.channel import open_channel
from pipecd.wire.server import TlsFiles, grpc_server
from pipecd.wire.table import RpcTable
from servers.polling import eventually


async def test_an_unavailable_server_is_reported_within_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable, match=f"cannot connect to 127.0.0.1:{port} within 0.2s"):
        async with open_channel(
            f"127.0.0.1:{port}", authorization="", insecure=True, connect_timeout=0.2
        ):
            pytest.fail("connected without a server")


@pytest.mark.slow
async def test_the_cause_of_a_delay_is_logged_before_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for is_quiet, lines in ((False, 1), (True, 0)):
        with capture_logs() as logs, pytest.raises(Unavailable, match="nothing listens on port"):
            async with open_channel(
                f"127.0.0.1:{port}",
                authorization="",
                insecure=True,
                connect_timeout=1.2,
                is_quiet=is_quiet,
            ):
                pytest.fail("connected without a server")
        assert len(logs) == lines
        assert all("nothing listens on port" in line["error"] for line in logs)


async def test_a_connection_without_delay_is_not_logged(table: RpcTable[str]) -> None:
    async with grpc_server([table], host="127.0.0.1", port=0, grace=0) as port:
        address = f"127.0.0.1:{port}"
        with capture_logs() as logs:
            async with open_channel(address, authorization="", insecure=True, connect_timeout=None):
                assert logs == []


@pytest.mark.parametrize(
    ("host", "insecure", "trusted", "cause"),
    [
        pytest.param("127.0.0.1", True, False, "speaks TLS, not plain text", id="plain text"),
        pytest.param("localhost", False, False, "is not trusted: self-signed", id="not trusted"),
        pytest.param(
            "127.0.0.2", False, True, "is for another host .IP address mismatch", id="name"
        ),
    ],
)
async def test_the_cause_of_a_tls_mismatch_is_named(
    table: RpcTable[str], tls_files: TlsFiles, host: str, insecure: bool, trusted: bool, cause: str
) -> None:
    cert_file = tls_files.cert_file if trusted else ""
    async with grpc_server([table], host="0.0.0.0", port=0, tls=tls_files, grace=0) as port:
        for limit in (0.3, None):
            with pytest.raises(Unavailable, match=cause):
                await connect(f"{host}:{port}", insecure, cert_file, limit)


async def connect(address: str, insecure: bool, cert_file: str, limit: float | None) -> None:
    """Raises Unavailable with the cause, also if it is only logged."""
    with capture_logs() as logs:
        connecting = open_channel(
            address, authorization="", insecure=insecure, cert_file=cert_file, connect_timeout=limit
        )
        entering = asyncio.create_task(connecting.__aenter__())
        if limit is not None:
            await entering
        await eventually(lambda: logs)
        entering.cancel()
        await asyncio.wait({entering})
    raise Unavailable(logs[0]["error"])


async def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="cannot read the certificate file"):
        async with open_channel(
            "127.0.0.1:1", authorization="", insecure=False, cert_file=str(tmp_path / "none")
        ):
            pytest.fail("connected")


def pipe_with(path: str) -> int:
    """What a shell passes for `--cert-file <(cat FILE)`."""
    reading, writing = os.pipe()
    os.write(writing, Path(path).read_bytes())
    os.close(writing)
    return reading


async def test_the_certificates_of_a_pipe_are_read_once(
    table: RpcTable[str], tls_files: TlsFiles
) -> None:
    reading = pipe_with(tls_files.cert_file)
    async with (
        grpc_server([table], host="127.0.0.1", port=0, tls=tls_files, grace=0) as port,
        open_channel(
            f"localhost:{port}",
            authorization="API-KEY k",
            insecure=False,
            cert_file=f"/dev/fd/{reading}",
        ) as channel,
    ):
        os.close(reading)
        request = api_pb2.GetCommandRequest(command_id="c")
        assert (await api_pb2_grpc.APIServiceStub(channel).GetCommand(request)).command.id == "c"


async def test_a_call_keeps_metadata_of_its_own(table: RpcTable[str]) -> None:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        open_channel(f"127.0.0.1:{port}", authorization="API-KEY k", insecure=True) as channel,
    ):
        answer = await api_pb2_grpc.APIServiceStub(channel).GetCommand(
            api_pb2.GetCommandRequest(command_id="c"), metadata=(("x-trace", "1"),)
        )
        assert answer.command.id == "c"


async def test_a_channel_finds_a_restarted_server(table: RpcTable[str]) -> None:
    async with grpc_server([table], host="127.0.0.1", port=0, grace=0) as port:
        opened = open_channel(f"127.0.0.1:{port}", authorization="API-KEY k", insecure=True)
        channel = await opened.__aenter__()
    stub = api_pb2_grpc.APIServiceStub(channel)
    async with grpc_server([table], host="127.0.0.1", port=port, grace=0):
        request = api_pb2.GetCommandRequest(command_id="c")
        assert (await stub.GetCommand(request, wait_for_ready=True, timeout=10)).command.id == "c"
    await opened.__aexit__(None, None, None)
