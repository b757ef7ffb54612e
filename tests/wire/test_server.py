# SPDX-License-Identifier: Apache-2.0
"""A server binds its port or reports why not, answers health checks and stops gracefully."""

import asyncio
import errno
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from pipecd.model.errors import UserMistake
from pipecd.proto.service import api_pb2, api_pb2_grpc
from pipecd.wire import health
from pipecd.wire.channel import open_channel
from pipecd.wire.server import RECEIVE_LIMIT, ServerOptions, TlsFiles, cannot_listen, grpc_server
from pipecd.wire.table import RpcTable

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

# A gRPC server as others write it: with the default of gRPC, which shares its port.
OTHER_SERVER = """
import asyncio, sys
import grpc.aio
async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(None)
asyncio.run(main())
"""


def watch(channel: grpc.aio.Channel, service: str = "") -> Any:
    return channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )(health_pb2.HealthCheckRequest(service=service))


@pytest.mark.slow
async def test_thousands_of_calls_that_arrive_at_once_are_all_served(table: RpcTable[str]) -> None:
    def send(port: int) -> tuple[list[grpc.Channel], list[Any]]:
        # A connection may have 1,000 calls at a time.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(3)]
        for channel in channels:
            grpc.channel_ready_future(channel).result(10)
        checks = [channel.unary_unary("/grpc.health.v1.Health/Check") for channel in channels]
        return channels, [check.future(b"") for check in checks for _ in range(800)]

    async with grpc_server([table], host="127.0.0.1", port=0, grace=0) as port:
        channels, calls = await asyncio.to_thread(send, port)
        # The server is busy while they arrive.
        time.sleep(1)  # noqa: ASYNC251
        codes = {await asyncio.to_thread(call.code) for call in calls}
        for channel in channels:
            channel.close()
    assert codes == {grpc.StatusCode.OK}


async def test_a_second_server_of_ours_on_the_port_is_refused(table: RpcTable[str]) -> None:
    async with grpc_server([table], host="127.0.0.1", port=0, grace=0) as port:
        with pytest.raises(UserMistake) as caught:
            async with grpc_server([table], host="127.0.0.1", port=port):
                pytest.fail("two servers share one port")
    assert str(caught.value) == (
        f"port {port} is in use by another program, cannot listen on 127.0.0.1:{port}; "
        "stop that program or choose another port"
    )


async def test_a_port_of_another_grpc_server_is_refused(table: RpcTable[str]) -> None:
    other = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OTHER_SERVER), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    port = int(await other.stdout.readline())
    with pytest.raises(UserMistake, match=f"port {port} is in use"):
        async with grpc_server([table], host="127.0.0.1", port=port):
            pytest.fail("two servers share one port")
    await other.communicate(b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "", "0.0.0.0"])
async def test_a_port_of_any_program_is_refused(table: RpcTable[str], host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserMistake, match=f"port {port} is in use"):
            async with grpc_server([table], host=host, port=port):
                pytest.fail("two servers share one port")


async def test_a_port_can_be_bound_again_at_once(table: RpcTable[str]) -> None:
    async with grpc_server([table], host="127.0.0.1", port=0, grace=0) as port:
        pass
    async with grpc_server([table], host="127.0.0.1", port=port, grace=0) as again:
        assert again == port


@pytest.mark.parametrize(
    ("code", "flag", "error"),
    [
        (
            errno.EADDRINUSE, "--http-port",
            "port 443 is in use by another program, cannot listen on 0.0.0.0:443; "
            "stop that program or choose another port with --http-port",
        ),
        (
            errno.EACCES, "--http-port",
            "port 443 needs privileges that this process does not have; "
            "choose a port above 1023 with --http-port",
        ),
        (
            errno.EADDRNOTAVAIL, "",
            "cannot listen on 0.0.0.0:443: Cannot assign requested address; "
            "choose another host of this machine or another port",
        ),
        (
            socket.EAI_NONAME, "",
            "cannot listen on 0.0.0.0:443: in the words of asyncio; "
            "choose another host of this machine or another port",
        ),
    ],
)  # fmt: skip
def test_the_remedy_depends_on_why_a_port_cannot_be_used(code: int, flag: str, error: str) -> None:
    caught = OSError(code, "in the words of asyncio")
    assert str(cannot_listen("", 443, caught, flag=flag)) == error


@pytest.mark.parametrize(
    ("host", "error"),
    [
        pytest.param("192.0.2.1", "cannot listen on 192.0.2.1:0", id="an address of others"),
        pytest.param("no.such.host.invalid", "unknown host", id="an unknown name"),
    ],
)
async def test_a_wrong_host_is_reported(table: RpcTable[str], host: str, error: str) -> None:
    with pytest.raises(UserMistake, match=error):
        async with grpc_server([table], host=host, port=0):
            pytest.fail("listens on a host that is not ours")


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost", "::1"])
async def test_every_form_of_host_listens(table: RpcTable[str], host: str) -> None:
    async with grpc_server([table], host=host, port=0, grace=0) as port:
        near = {"": "127.0.0.1", "::1": "[::1]"}.get(host, host)
        async with open_channel(f"{near}:{port}", authorization="", insecure=True):
            pass


async def test_health_is_reported_for_the_server_and_each_service(table: RpcTable[str]) -> None:
    async with asyncio.timeout(20):
        async with grpc_server([table], host="127.0.0.1", port=0, grace=60) as port:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            whole, one = watch(channel), watch(channel, "grpc.service.apiservice.APIService")
            assert (await whole.read()).status == SERVING
            assert (await one.read()).status == SERVING
            assert (await watch(channel, "other").read()).status == SERVICE_UNKNOWN
        assert (await whole.read()).status == NOT_SERVING
        assert (await one.read()).status == NOT_SERVING
        await channel.close()


async def test_health_checks_need_no_credentials(table: RpcTable[str]) -> None:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        open_channel(f"127.0.0.1:{port}", authorization="", insecure=True) as channel,
    ):
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        assert (await check(health_pb2.HealthCheckRequest())).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_follows_the_readiness_check(
    table: RpcTable[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "POLL_SECONDS", 0.01)
    states = [True]

    async def ready() -> bool:
        return states[-1]

    options = ServerOptions(ready=ready)
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0, options=options) as port,
        open_channel(f"127.0.0.1:{port}", authorization="", insecure=True) as channel,
    ):
        watched = watch(channel)
        assert (await watched.read()).status == SERVING
        states.append(False)
        assert (await watched.read()).status == NOT_SERVING
        states.append(True)
        assert (await watched.read()).status == SERVING


async def test_running_calls_end_before_the_server_stops(table: RpcTable[str], seen: Any) -> None:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0.2) as port,
        open_channel(f"127.0.0.1:{port}", authorization="API-KEY k", insecure=True) as channel,
    ):
        stub = api_pb2_grpc.APIServiceStub(channel)
        slow = asyncio.ensure_future(stub.GetCommand(api_pb2.GetCommandRequest(command_id="slow")))
        await seen.entered.wait()
    assert seen.cancelled.is_set()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await slow


async def test_a_message_over_the_limit_is_refused_and_the_server_continues(
    table: RpcTable[str],
) -> None:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        open_channel(f"127.0.0.1:{port}", authorization="API-KEY k", insecure=True) as channel,
    ):
        stub = api_pb2_grpc.APIServiceStub(channel)
        big = api_pb2.GetCommandRequest(command_id="x" * (RECEIVE_LIMIT + 1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetCommand(big)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # The answer is as long as the request here, so it must pass our own receiving side too.
        most = api_pb2.GetCommandRequest(command_id="x" * (RECEIVE_LIMIT - 100))
        assert (await stub.GetCommand(most)).command.id == most.command_id


async def test_tls_serves_clients_that_trust_the_certificate(
    table: RpcTable[str], tls_files: TlsFiles
) -> None:
    trusted = tls_files.cert_file
    async with (
        grpc_server([table], host="127.0.0.1", port=0, tls=tls_files, grace=0) as port,
        open_channel(
            f"localhost:{port}", authorization="API-KEY k", insecure=False, cert_file=trusted
        ) as channel,
    ):
        stub = api_pb2_grpc.APIServiceStub(channel)
        answer = await stub.GetCommand(api_pb2.GetCommandRequest(command_id="c1"))
        assert answer.command.id == "c1"


async def test_a_socket_in_the_file_system_serves(table: RpcTable[str], tmp_path: Path) -> None:
    socket_file = f"unix:{tmp_path / 'grpc.sock'}"
    async with (
        grpc_server([table], host=socket_file, port=0, grace=0),
        open_channel(socket_file, authorization="API-KEY k", insecure=True) as channel,
    ):
        stub = api_pb2_grpc.APIServiceStub(channel)
        answer = await stub.GetCommand(api_pb2.GetCommandRequest(command_id="c1"))
        assert answer.command.id == "c1"


async def test_a_socket_that_cannot_be_created_is_reported(
    table: RpcTable[str], tmp_path: Path
) -> None:
    socket_file = f"unix:{tmp_path / 'none' / 'grpc.sock'}"
    with pytest.raises(UserMistake, match="cannot listen on unix:"):
        async with grpc_server([table], host=socket_file, port=0):
            pytest.fail("serves without a socket")


async def test_a_missing_tls_file_is_named(table: RpcTable[str], tmp_path: Path) -> None:
    tls = TlsFiles(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with pytest.raises(UserMistake, match=r"cannot read the TLS file .*cert.pem"):
        async with grpc_server([table], host="127.0.0.1", port=0, tls=tls):
            pytest.fail("serves without a certificate")
