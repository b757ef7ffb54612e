# SPDX-License-Identifier: Apache-2.0
"""Each cause why a control plane cannot be used has a sentence of its own."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceServicer
from pipecd.wire.connection_problem import find_problem, split_address
from pipecd.wire.server import TlsFiles
from servers.api_service import serve_api
from servers.control_plane import StartControlPlane
from servers.programs import OUR_PIPECTL, OUR_PIPED

LIST = "application list --api-key k --address"


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
async def test_a_port_where_nothing_listens(type_line: Any) -> None:
    port = unused_port()
    code, _, err = await type_line(f"{LIST} 127.0.0.1:{port} --insecure")
    sentence = f"nothing listens on port {port} of 127.0.0.1: the connection was refused"
    assert code == 1
    # It is retried, because the server may be starting, but the cause is printed at once.
    first, last = err.splitlines()
    assert "control plane unavailable, retrying" in first
    assert sentence in first
    assert last.endswith(f"{sentence}; check the port, and that the control plane runs")


@pytest.mark.slow
async def test_a_server_that_starts_meanwhile_is_used(
    start_plane: StartControlPlane, type_line: Any
) -> None:
    port = unused_port()
    typed = asyncio.create_task(type_line(f"{LIST} 127.0.0.1:{port} --insecure"))
    await asyncio.sleep(0.5)
    async with start_plane(port=port):
        _, _, err = await typed
    assert "the API key is wrong" in err


async def test_an_unknown_host(type_line: Any) -> None:
    code, _, err = await type_line(f"{LIST} no-such-host.invalid:443")
    assert (code, "the host no-such-host.invalid is unknown" in err) == (1, True), err
    assert "check the spelling of the address" in err


async def test_certificates_and_plain_text(
    start_plane: StartControlPlane, certificate: tuple[str, str], type_line: Any
) -> None:
    cert_file, key_file = certificate
    async with start_plane(tls=TlsFiles(cert_file, key_file)) as plane:
        line = f"application list --api-key {plane.api_key} --address {plane.address}"
        code, _, err = await type_line(line)
        assert code == 1
        assert f"the certificate of {plane.address} is not trusted: self-signed" in err
        assert "--cert-file" in err
        assert (await type_line(f"{line} --cert-file {cert_file}"))[:2] == (0, "{}\n")
        code, _, err = await type_line(f"{line} --insecure")
        sentence = f"{plane.address} speaks TLS, not plain text; leave out --insecure"
        assert (code, sentence in err) == (1, True), err
        code, _, err = await type_line(f"{line} --cert-file {key_file}")
        assert (code, "is not a file of PEM certificates; check --cert-file" in err) == (1, True)
    async with start_plane() as plane:
        code, _, err = await type_line(f"{LIST} {plane.address}")
        sentence = f"{plane.address} speaks plain text, not TLS; add --insecure"
        assert (code, sentence in err) == (1, True), err


async def test_a_failed_handshake_is_one_line(start_plane: StartControlPlane) -> None:
    async with start_plane() as plane:
        line = [OUR_PIPECTL, *f"application list --api-key k --address {plane.address}".split()]
        process = await asyncio.create_subprocess_exec(*line, stderr=asyncio.subprocess.PIPE)
        _, errors = await process.communicate()
    assert len(errors.decode().splitlines()) == 1, errors.decode()


async def test_a_wrong_certificate_file_is_one_line(tmp_path: Path) -> None:
    """gRPC would print eight more, which have the names of its source files."""
    (tmp_path / "ca.pem").write_text("no certificate\n")
    flags = f"--api-key k --address localhost:1 --cert-file {tmp_path}/ca.pem"
    line = [OUR_PIPECTL, *f"application list {flags}".split()]
    process = await asyncio.create_subprocess_exec(*line, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    [only] = errors.decode().splitlines()
    assert "ca.pem is not a file of PEM certificates; check --cert-file" in only


@pytest.mark.slow
async def test_a_piped_logs_its_own_words_about_failed_handshakes(
    start_plane: StartControlPlane, tmp_path: Path
) -> None:
    async with start_plane() as plane:
        file = tmp_path / "piped.yaml"
        identity = f"projectID: p, pipedID: d, pipedKeyData: a2V5, apiAddress: {plane.address}"
        file.write_text(f"apiVersion: pipecd.dev/v1beta1\nkind: Piped\nspec: {{{identity}}}\n")
        words = f"run --config-file {file} --workspace-dir {tmp_path / 'work'} --admin-port 0"
        process = await asyncio.create_subprocess_exec(
            OUR_PIPED, *words.split(), stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        first = (await process.stderr.readline()).decode()
        await asyncio.sleep(1.5)
        process.terminate()
        _, rest = await process.communicate()
    assert "speaks plain text, not TLS; add --insecure" in first
    assert b"Handshake" not in rest


async def test_a_wrong_key(start_plane: StartControlPlane, type_line: Any) -> None:
    async with start_plane() as plane:
        code, _, err = await type_line(f"{LIST} {plane.address} --insecure")
    assert code == 1
    assert "the API key is wrong, disabled or of another control plane" in err


@asynccontextmanager
async def web_server() -> AsyncGenerator[str]:
    """A server of HTTP/1.1 only."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_address_of_something_else(type_line: Any) -> None:
    async with web_server() as address:
        code, _, err = await type_line(f"{LIST} {address} --insecure")
        sentence = f"there is no PipeCD at {address}: a web server without gRPC answers"
        assert (code, sentence in err) == (1, True), err
        code, _, err = await type_line(f"{LIST} {address}")
        assert (code, f"{address} speaks no TLS" in err) == (1, True), err
    async with serve_api() as address:
        code, _, err = await type_line(f"{LIST} {address} --insecure")
        assert code == 1
        assert "code = Unimplemented" in err
        assert "is the address that of a PipeCD control plane?" in err


async def test_a_name_with_several_addresses_on_which_nothing_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = unused_port()
    addresses = [("127.0.0.1", port), ("127.0.0.2", port)]
    known = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)
    problem = await find_problem(f"pipecd.example.com:{port}", insecure=True, cert_file="")
    assert problem is not None
    refused = f"nothing listens on port {port} of pipecd.example.com: the connection was refused"
    assert problem.what == refused


@pytest.mark.slow
async def test_a_server_that_says_nothing() -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        problem = await find_problem(address, insecure=True, cert_file="")
    assert problem is not None
    assert problem.what == f"{address} does not answer"


@asynccontextmanager
async def answer_after_headers() -> AsyncGenerator[str, None]:
    """A server of HTTP/1.1 that waits for the end of the headers, as the admin port does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionResetError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_web_server_that_waits_for_headers_is_not_taken_for_a_firewall() -> None:
    async with answer_after_headers() as address:
        problem = await find_problem(address, insecure=True, cert_file="")
    assert problem is not None
    assert problem.what == f"there is no PipeCD at {address}: a web server without gRPC answers"


async def test_behind_a_proxy_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    assert await find_problem(f"127.0.0.1:{unused_port()}", insecure=False, cert_file="") is None


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("cd:8443", ("cd", 8443)),
        ("cd.example.com", ("cd.example.com", 443)),
        ("[::1]:9080", ("::1", 9080)),
        ("[::1]", ("::1", 443)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


class UpstreamControlPlane(APIServiceServicer):
    """What a control plane of upstream offers for a deployment that waits for approval."""

    async def GetDeployment(self, request: Any, context: Any) -> pb.GetDeploymentResponse:
        stage = PipelineStage(id="s1", name="WAIT_APPROVAL", status=1)  # pyright: ignore[reportArgumentType]
        return pb.GetDeploymentResponse(deployment=Deployment(id="d1", stages=[stage]))


@pytest.mark.parametrize(
    "verb",
    [
        "deployment cancel --deployment-id d1",
        "deployment approve --deployment-id d1",
        "deployment reject --reason no --deployment-id d1",
        "deployment skip --deployment-id d1",
        "piped list",
        "session list",
        "session end --session-id s1",
        "session end --username vera",
        "session end --all",
    ],
)
async def test_upstreams_control_plane_lacks_our_verbs_and_they_say_so(
    verb: str, type_line: Any
) -> None:
    async with serve_api(UpstreamControlPlane()) as address:  # pyright: ignore[reportAbstractUsage]
        line = f"{verb} --address {address} --insecure --api-key k"
        code, _, err = await type_line(line)
    assert code == 1
    assert len(err.splitlines()) == 1
    assert f"the control plane at {address} does not offer this to pipectl" in err
    assert "it is one of upstream's, or an older one" in err
