# SPDX-License-Identifier: Apache-2.0
"""The connection of pipectl to a control plane, and how its errors are printed."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import grpc.aio
import structlog

from pipecd.commandline import flags
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe import log
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from pipecd.wire.status import from_rpc_error

if TYPE_CHECKING:
    from pipecd.proto.service.api_pb2_grpc import APIServiceAsyncStub as Api
else:
    Api = APIServiceStub

T = TypeVar("T")
_CONNECT_TIMEOUT = 5.0
_RECEIVE_LIMIT = 4 * 1024 * 1024

logger = structlog.get_logger()


def with_api(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Adds the connection flags and passes the connected API to the command as `api`."""

    @functools.wraps(command)
    def connected(**given: Any) -> None:
        log.configure(given.pop("log_level"), given.pop("log_encoding"), program="pipectl")
        for ignored in ("metrics", "profile", "profile_debug_logging", "profiler_credentials_file"):
            given.pop(ignored)
        settings = {name: given.pop(name) for name in _CLIENT_FLAGS}

        async def work() -> None:
            async with connect(**settings) as api:
                await command(api=api, **given)

        asyncio.run(work())

    return flags.every_command(client_flags(connected))


def client_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags that describe the connection to the control plane."""
    for add in (
        flags.text("cert-file", "The certificate to trust instead of the system's."),
        flags.switch("insecure", "Connect without TLS."),
        flags.text("api-key-file", "A file with the API key, used when --api-key is not set."),
        flags.text("api-key", "The API key."),
        flags.text("address", "The address of the control plane, host:port."),
    ):
        command = add(command)
    return command


_CLIENT_FLAGS = ("address", "api_key", "api_key_file", "insecure", "cert_file")


@asynccontextmanager
async def connect(
    *, address: str, api_key: str, api_key_file: str, insecure: bool, cert_file: str
) -> AsyncGenerator[Api, None]:
    """Connects with the given key."""
    if not address:
        raise UserMistake("address must be set", hint="add --address host:port")
    key = api_key or await asyncio.to_thread(_read_key, api_key_file)
    async with open_channel(
        address,
        authorization=credentials.api_key(key),
        insecure=insecure,
        cert_file=cert_file,
        connect_timeout=_CONNECT_TIMEOUT,
        receive_limit=_RECEIVE_LIMIT,
    ) as channel:
        yield APIServiceStub(channel)


def _read_key(path: str) -> str:
    if not path:
        raise UserMistake("either api-key or api-key-file must be set")
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
        raise type(from_rpc_error(e))(message) from e


def print_json(text: str) -> None:
    """Prints a result on standard output; everything else goes to standard error."""
    click.echo(text)
