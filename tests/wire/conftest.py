# SPDX-License-Identifier: Apache-2.0
"""A small gRPC service: three RPCs of the API, and the wake-up stream."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from pipecd.model.errors import NotFound
from pipecd.proto.service import api_pb2, wakeups_pb2
from pipecd.wire.credentials import Metadata, parse_api_key
from pipecd.wire.server import TlsFiles
from pipecd.wire.table import RpcTable

SERVICE = api_pb2.DESCRIPTOR.services_by_name["APIService"]
OFFERED = {"GetCommand", "GetPiped", "EnablePiped"}
UNIMPLEMENTED = frozenset(SERVICE.methods_by_name) - OFFERED


@dataclass
class Seen:
    """Records of the handlers and the observer of the service."""

    callers: list[str] = field(default_factory=list[str])
    calls: list[tuple[str, grpc.StatusCode]] = field(
        default_factory=list[tuple[str, grpc.StatusCode]]
    )
    offers: set[tuple[str, bool]] = field(default_factory=set[tuple[str, bool]])
    begun: list[str] = field(default_factory=list[str])
    messages: list[str] = field(default_factory=list[str])
    streams_open: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    def registered(self, service: str, rpc: str, *, streaming: bool) -> None:
        assert service == SERVICE.full_name
        self.offers.add((rpc, streaming))

    def started(self, service: str, rpc: str, metadata: Metadata) -> None:
        assert service == SERVICE.full_name
        self.begun.append(rpc)

    def sent(self, service: str, rpc: str) -> None:
        assert service == SERVICE.full_name
        self.messages.append(rpc)

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None:
        assert service == SERVICE.full_name
        assert seconds >= 0
        self.calls.append((rpc, code))


class CommandRpcs:
    """Answers GetCommand; some ids cause a delay or an error."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def GetCommand(
        self, request: api_pb2.GetCommandRequest, caller: str
    ) -> api_pb2.GetCommandResponse:
        self._seen.callers.append(caller)
        match request.command_id:
            case "missing":
                raise NotFound("Command is not found")
            case "bug":
                raise ZeroDivisionError("the secret is 42")
            case "slow":
                self._seen.entered.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self._seen.cancelled.set()
                    raise
            case "wrong type":
                return api_pb2.GetPipedResponse()  # pyright: ignore[reportReturnType]
            case _:
                pass
        return api_pb2.GetCommandResponse(command={"id": request.command_id})  # pyright: ignore[reportArgumentType]


class PipedRpcs:
    """The other part."""

    async def GetPiped(
        self, request: api_pb2.GetPipedRequest, caller: str
    ) -> api_pb2.GetPipedResponse:
        return api_pb2.GetPipedResponse()

    async def EnablePiped(
        self, request: api_pb2.EnablePipedRequest, caller: str
    ) -> api_pb2.EnablePipedResponse:
        return api_pb2.EnablePipedResponse()


async def authenticate(metadata: Metadata) -> str:
    return parse_api_key(metadata)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def table(seen: Seen) -> RpcTable[str]:
    async def watch(
        request: wakeups_pb2.WatchWakeupsRequest, caller: str
    ) -> AsyncIterator[wakeups_pb2.Wakeup]:
        seen.streams_open += 1
        try:
            yield wakeups_pb2.Wakeup()
            yield wakeups_pb2.Wakeup(kind=wakeups_pb2.Wakeup.COMMANDS)
            if caller == "broken":
                raise ZeroDivisionError
            if caller == "late":
                # A timeout of the method itself is not the end of the server.
                raise TimeoutError
            await asyncio.Event().wait()
        finally:
            seen.streams_open -= 1
            seen.closed.set()

    return RpcTable(
        SERVICE,
        [CommandRpcs(seen), PipedRpcs()],
        authenticate,
        unimplemented=UNIMPLEMENTED,
        streams={"WatchWakeups": (wakeups_pb2.WatchWakeupsRequest, watch)},
        observer=seen,
    )


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A self-signed certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    (directory / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return TlsFiles(str(directory / "cert.pem"), str(directory / "key.pem"))
