# SPDX-License-Identifier: Apache-2.0
"""The connection of pipectl to a control plane, and how its errors are printed."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import grpc.aio
import structlog
from google.protobuf.message import Message

from pipecd.commandline import flags
from pipecd.model.errors import PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.observe import log
from pipecd.pipectl.contexts import complete_context, load_contexts
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.deployment_control_pb2 import DeploymentCommandResponse
from pipecd.wire import credentials
from pipecd.wire.channel import API_SERVICE, channel_factory, extension_rpc
from pipecd.wire.connection_problem import ConnectionProblem, find_problem
from pipecd.wire.status import from_rpc_error

if TYPE_CHECKING:
    from pipecd.proto.service.api_pb2_grpc import APIServiceAsyncStub as Api
else:
    Api = APIServiceStub

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=Message)
_CONNECT_TIMEOUT = 5.0
_MAX_PORT = 65535
# What the codes of a control plane mean to the user of an API key.
_HINTS = {
    grpc.StatusCode.UNAUTHENTICATED: "the API key is wrong, disabled or of another control plane",
    grpc.StatusCode.PERMISSION_DENIED: "the API key is read-only, or this is of another project",
    grpc.StatusCode.UNIMPLEMENTED: "is the address that of a PipeCD control plane?",
}
# The logs of a deployment exceed the default limit of gRPC, which upstream's client has.
_RECEIVE_LIMIT = 256 * 1024 * 1024

logger = structlog.get_logger()


@dataclass(frozen=True)
class Connection:
    """A connection to a control plane: upstream's API, and the RPCs of ours beside it."""

    address: str
    insecure: bool
    api: Api
    channel: grpc.aio.Channel

    async def control(self, rpc: str, request: Message) -> DeploymentCommandResponse:
        """Calls an RPC of DeploymentControl, which upstream's control planes lack."""
        return await self.own_rpc(rpc, request, DeploymentCommandResponse)

    async def own_rpc(self, rpc: str, request: Message, response: type[ResponseT]) -> ResponseT:
        """Calls an RPC of ours; raises Unsupported if this is a control plane of upstream."""
        try:
            return await extension_rpc(self.channel, API_SERVICE, rpc, response)(request)
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Unsupported(
                    f"the control plane at {self.address} does not offer this to pipectl",
                    hint="it is one of upstream's, or an older one",
                ) from e
            raise


def with_api(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Adds the connection flags and passes the connected API to the command as `api`."""

    @functools.wraps(command)
    async def with_its_api(connection: Connection, **given: Any) -> None:
        await command(api=connection.api, **given)

    return with_connection(with_its_api)


def with_connection(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Adds the connection flags and passes the connection to the command as `connection`."""

    @functools.wraps(command)
    def connected(**given: Any) -> None:
        log.configure(given.pop("log_level"), given.pop("log_encoding"), program="pipectl")
        for ignored in ("metrics", "profile", "profile_debug_logging", "profiler_credentials_file"):
            given.pop(ignored)
        settings = connection_settings(given)
        for name in (*_CLIENT_FLAGS, "context"):
            given.pop(name)

        async def work() -> None:
            async with connect(**settings) as connection:
                await command(connection=connection, **given)

        asyncio.run(work())

    return flags.every_command(client_flags(connected))


def client_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags that describe the connection to the control plane."""
    add_all = flags.after_own(
        flags.text("address", "The address of the control plane, host:port."),
        flags.text("api-key", "The API key."),
        flags.text("api-key-file", "A file with the API key, used when --api-key is not set."),
        flags.switch("insecure", "Connect without TLS."),
        flags.text("cert-file", "The certificate to trust instead of the system's."),
        flags.text(
            "context",
            "The control plane of `pipectl login` to use; the current one.",
            complete=complete_context,
        ),
    )
    return add_all(command)


_CLIENT_FLAGS = ("address", "api_key", "api_key_file", "insecure", "cert_file")


def connection_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that describe the connection."""
    return {name: given[name] for name in _CLIENT_FLAGS}


def connection_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The connection of the flags; without an address, that of a context with the flags on top."""
    settings = connection_flags(given)
    if settings["address"] and not given["context"]:
        return settings
    contexts = load_contexts()
    name = given["context"] or contexts.current
    if not name:
        return settings
    context = contexts.get(name)
    settings["address"] = settings["address"] or context.address
    settings["insecure"] = settings["insecure"] or context.insecure
    settings["cert_file"] = settings["cert_file"] or context.cert_file
    if not settings["api_key_file"]:
        settings["api_key"] = settings["api_key"] or context.api_key
    return settings


@asynccontextmanager
async def connect(
    *, address: str, api_key: str, api_key_file: str, insecure: bool, cert_file: str
) -> AsyncGenerator[Connection, None]:
    """Connects with the given key."""
    if not address:
        raise UserMistake(
            "address must be set", hint="add --address host:port, or run `pipectl login` first"
        )
    check_address(address)
    key = api_key or await asyncio.to_thread(read_key, api_key_file)
    create = await channel_factory(
        address,
        authorization=credentials.api_key(key),
        insecure=insecure,
        cert_file=cert_file,
        receive_limit=_RECEIVE_LIMIT,
    )
    async with create() as channel:
        await _wait_until_connected(channel, address, insecure=insecure, cert_file=cert_file)
        yield Connection(address, insecure, APIServiceStub(channel), channel)


async def _wait_until_connected(
    channel: grpc.aio.Channel, address: str, *, insecure: bool, cert_file: str
) -> None:
    """Waits for the connection; raises Unavailable with the cause.

    A server that does not listen may be starting, so it is tried until the timeout.
    """
    problem: ConnectionProblem | None = None
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and problem is None:
                    problem = await find_problem(address, insecure=insecure, cert_file=cert_file)
                    if problem and problem.is_permanent:
                        raise Unavailable(problem.what, hint=problem.hint)
                    if problem:
                        logger.info("control plane unavailable, retrying", error=problem.what)
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError as e:
        problem = problem or await find_problem(address, insecure=insecure, cert_file=cert_file)
        if problem:
            raise Unavailable(problem.what, hint=problem.hint) from e
        what = f"cannot connect to {address} within {_CONNECT_TIMEOUT:g}s"
        raise Unavailable(what, hint="check the address and that the server runs") from e


def check_address(address: str) -> None:
    """Refuses an address that is none, before a connection to it is attempted."""
    if "://" in address:
        raise UserMistake(f"the address {address} is a URL", hint="write host:port, such as cd:443")
    _, colon, port = address.rpartition(":")
    if colon and port.isdigit() and not 0 < int(port) <= _MAX_PORT:
        raise UserMistake(f"there is no port {port}", hint=f"ports end at {_MAX_PORT}")


def read_key(path: str) -> str:
    if not path:
        raise UserMistake(
            "either api-key or api-key-file must be set",
            hint="or run `pipectl login`, and leave out --address",
        )
    try:
        return Path(path).read_text().strip()
    except OSError as e:
        raise UserMistake(f"cannot read the API key file {path}: {e.strerror}") from e


async def attempt(what: str, response: Awaitable[T]) -> T:
    """Awaits a response; an error becomes `failed to <what>: …` with its code and message."""
    try:
        return await call(response)
    except PipecdError as e:
        raise type(e)(f"failed to {what}: {e}") from e


async def call_or_print(describe: Callable[[PipecdError], str], response: Awaitable[T]) -> T:
    """Awaits a response; an error is also printed on standard output, as upstream does."""
    try:
        return await call(response)
    except PipecdError as e:
        print_json(describe(e))
        raise


async def call(response: Awaitable[T]) -> T:
    """Awaits a response; an error becomes `rpc error: code = … desc = …`, as grpc-go prints it."""
    try:
        return await response
    except grpc.aio.AioRpcError as e:
        code = "".join(part.capitalize() for part in e.code().name.split("_"))
        message = f"rpc error: code = {code} desc = {e.details()}"
        raise type(from_rpc_error(e))(message, hint=_hint(e)) from e


def _hint(error: grpc.aio.AioRpcError) -> str:
    """What the code means, unless the control plane says more than that access is denied."""
    code, details = error.code(), str(error.details())
    if code is grpc.StatusCode.PERMISSION_DENIED and details.lower() != "permission denied":
        return ""
    return _HINTS.get(code, "")


def print_json(text: str) -> None:
    """Prints a result on standard output; everything else goes to standard error."""
    click.echo(text)
