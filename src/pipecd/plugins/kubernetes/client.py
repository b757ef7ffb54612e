# SPDX-License-Identifier: Apache-2.0
"""The client of an API server: requests with retries, watches, credentials and TLS."""

import asyncio
import json
import os
import ssl
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import httpx2

from pipecd.plugins.kubernetes.kubeconfig import Connection, ExecPlugin
from pipecd.plugins.kubernetes.metrics import not_recorded
from pipecd.sdk import Backoff, PipecdError, Unavailable, UserMistake
from pipecd.sdk.diff import is_map
from pipecd.sdk.program import capture
from pipecd.sdk.unstructured import at, list_at, map_at, text_at

_SCHEMA_ERRORS = ("failed to create typed patch object", "failed to convert new object")


class ApiError(PipecdError):
    """An error status of the API server."""

    def __init__(self, code: int, status: Mapping[str, Any], *, hint: str = "") -> None:
        super().__init__(text_at(status, "message") or f"HTTP status {code}", hint=hint)
        self.code = code
        self.reason = text_at(status, "reason")
        self.causes = tuple(
            (text_at(cause, "field"), text_at(cause, "message"))
            for cause in list_at(status, "details", "causes")
        )
        self.retry_after = int(at(status, "details", "retryAfterSeconds") or 0)

    @property
    def is_not_found(self) -> bool:
        """Reports whether the object, or its kind, does not exist."""
        return self.code == 404

    @property
    def is_conflict(self) -> bool:
        """Reports whether another manager owns a field, or the object changed meanwhile."""
        return self.code == 409 and self.reason == "Conflict"

    @property
    def is_already_exists(self) -> bool:
        """Reports whether an object of that name exists."""
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def is_schema_error(self) -> bool:
        """Reports whether the object violates its schema, which servers report as code 500."""
        return self.code == 500 and any(words in self.message for words in _SCHEMA_ERRORS)

    @property
    def is_immutable(self) -> bool:
        """Reports whether the request changes an immutable field."""
        return self.code == 422 and any("immutable" in message for _, message in self.causes)


# Tokens of a pod are renewed in their file.
_TOKEN_FILE_TTL = 60.0
_RENEW_BEFORE_EXPIRY = 30.0


@dataclass(frozen=True)
class _AuthorizationHeader:
    """A header value and when it expires on the monotonic clock."""

    value: str
    until: float


class ClusterCredentials:
    """The `authorization` header of a connection, renewed before it expires."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cached: _AuthorizationHeader | None = None
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        """Returns the header, empty if the connection has only a client certificate."""
        async with self._lock:
            if self._cached is None or self._cached.until <= time.monotonic():
                self._cached = await self._renew()
            return self._cached.value

    def invalidate(self) -> None:
        """Renews the header at the next call, because the server refused it."""
        self._cached = None

    async def _renew(self) -> _AuthorizationHeader:
        connection = self._connection
        if connection.exec_plugin is not None:
            return await _run_exec_plugin(connection.exec_plugin)
        if connection.token_file is not None:
            token = await asyncio.to_thread(connection.token_file.read_text)
            return _AuthorizationHeader(
                f"Bearer {token.strip()}", time.monotonic() + _TOKEN_FILE_TTL
            )
        if connection.token:
            return _AuthorizationHeader(f"Bearer {connection.token}", float("inf"))
        if connection.user:
            pair = f"{connection.user}:{connection.password}".encode()
            return _AuthorizationHeader(f"Basic {b64encode(pair).decode()}", float("inf"))
        return _AuthorizationHeader("", float("inf"))


async def _run_exec_plugin(exec_plugin: ExecPlugin) -> _AuthorizationHeader:
    """Runs the exec plugin of a kubeconfig and reads the token that it prints."""
    request = {
        "apiVersion": exec_plugin.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = {
        **os.environ,
        **exec_plugin.environment,
        "KUBERNETES_EXEC_INFO": json.dumps(request),
    }
    argv = [exec_plugin.command, *exec_plugin.arguments]
    try:
        captured = await capture(argv, cwd=Path.cwd(), env=environment)
    except OSError as e:
        hint = exec_plugin.hint or "install it where piped runs"
        raise UserMistake(f"{exec_plugin.command} cannot be run: {e.strerror}", hint=hint) from e
    if captured.code != 0:
        stderr = captured.stderr.decode(errors="replace").strip()[-300:]
        raise UserMistake(
            f"{exec_plugin.command} returned no credentials (exit code {captured.code}): {stderr}",
            hint="run it as the user of piped; the kubeconfig names it at users[].user.exec",
        )
    try:
        response = json.loads(captured.stdout)
        token = text_at(response, "status", "token")
        expires = text_at(response, "status", "expirationTimestamp")
        remaining = (
            datetime.fromisoformat(expires).timestamp() - time.time() if expires else float("inf")
        )
    except ValueError as e:
        raise UserMistake(f"{exec_plugin.command} printed no ExecCredential") from e
    if not token:
        raise UserMistake(
            f"{exec_plugin.command} printed no token; client certificates are not supported"
        )
    return _AuthorizationHeader(
        f"Bearer {token}", time.monotonic() + max(remaining - _RENEW_BEFORE_EXPIRY, 1.0)
    )


CONNECTIONS = 16
_TIMEOUT = httpx2.Timeout(30.0, connect=5.0, pool=None)
# A watch is silent while nothing happens.
_WATCH_TIMEOUT = httpx2.Timeout(30.0, connect=5.0, read=None, pool=None)
# These attempts last about half a minute, long enough for an API server to restart.
_ATTEMPTS = 9
_BACKOFF = Backoff(first=0.25, longest=8.0)
_CERTIFICATE_ERROR = "CERTIFICATE_VERIFY_FAILED"
_RETRYABLE = (429, 500, 502, 503, 504)
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
# Responses with only the metadata of objects.
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# The code of a request without a response in the metrics.
_NO_RESPONSE = "<error>"

RecordResponse: TypeAlias = Callable[[str, str, str], None]


class RecordRequest(Protocol):
    """Records a request, once for all of its attempts."""

    def __call__(self, command: str, *, is_success: bool) -> None: ...


class KubernetesClient:
    """Requests to one API server, retried with backoff while it is unreachable or overloaded."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        credentials: ClusterCredentials,
        server_name: str = "",
        record_request: RecordRequest = not_recorded,
    ) -> None:
        self._http = http
        self._credentials = credentials
        self._record_request = record_request
        self._extensions = {"sni_hostname": server_name} if server_name else None

    async def get(self, path: str, *, accept: str = "application/json", **query: str) -> Any:
        """Reads an object or a list."""
        with self._recorded("get"):
            return await self._send("GET", path, query, accept=accept)

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        """Creates an object."""
        with self._recorded("create"):
            return await self._send("POST", path, query, body)

    async def replace(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        """Replaces an object."""
        with self._recorded("replace"):
            return await self._send("PUT", path, query, body)

    async def patch(self, path: str, body: Any, *, content_type: str, **query: str) -> Any:
        """Patches an object."""
        with self._recorded("apply"):
            return await self._send("PATCH", path, query, body, content_type=content_type)

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Deletes an object and what it owns."""
        with self._recorded("delete"):
            return await self._send("DELETE", path, {}, body)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[Any]]:
        """Opens a watch and yields its events until the server ends it."""
        headers = await self._headers("application/json")
        try:
            async with self._http.stream(
                "GET",
                path,
                params={**query, "watch": "true"},
                headers=headers,
                timeout=_WATCH_TIMEOUT,
                extensions=self._extensions,
            ) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise self._api_error(response)
                yield _events(response)
        except httpx2.HTTPError as e:
            raise _unreachable(self._http, e) from e

    @contextmanager
    def _recorded(self, command: str) -> Iterator[None]:
        try:
            yield
        except PipecdError as e:
            # An object that does not exist is a valid result.
            is_missing = isinstance(e, ApiError) and e.is_not_found
            is_success = is_missing and command in ("get", "delete")
            self._record_request(command, is_success=is_success)
            raise
        self._record_request(command, is_success=True)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(_ATTEMPTS):
            headers = await self._headers(accept)
            if content is not None:
                headers["content-type"] = content_type
            try:
                response = await self._http.request(
                    method,
                    path,
                    params=dict(query),
                    content=content,
                    headers=headers,
                    extensions=self._extensions,
                )
            except httpx2.HTTPError as e:
                # A lost response may be of a successful creation; callers handle AlreadyExists.
                if attempt + 1 == _ATTEMPTS:
                    raise _unreachable(self._http, e) from e
                await asyncio.sleep(_BACKOFF.after(attempt + 1))
                continue
            if response.status_code < 400:
                return response.json()
            error = self._api_error(response)
            is_token_refused = error.code == 401 and attempt == 0
            is_busy = error.code in _RETRYABLE and not error.is_schema_error
            if is_token_refused:
                self._credentials.invalidate()
            elif not is_busy or attempt + 1 == _ATTEMPTS:
                raise error
            await asyncio.sleep(error.retry_after or _BACKOFF.after(attempt + 1))
        raise AssertionError("the last attempt returns or raises")

    async def _headers(self, accept: str) -> dict[str, str]:
        headers = {"accept": accept}
        authorization = await self._credentials.header()
        if authorization:
            headers["authorization"] = authorization
        return headers

    @staticmethod
    def _api_error(response: httpx2.Response) -> ApiError:
        try:
            status = response.json()
        except ValueError:
            status = {"message": response.text.strip()[:500]}
        hint = ""
        if response.status_code == 401:
            hint = "the credentials are not accepted; correct the kubeconfig or its token"
        if response.status_code == 403 and text_at(status, "reason") == "Forbidden":
            hint = "grant the piped a role that allows it"
        return ApiError(response.status_code, status if is_map(status) else {}, hint=hint)


async def _events(response: httpx2.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line:
            try:
                event = json.loads(line)
            except ValueError as e:
                raise Unavailable("the API server ended a watch in the middle of a line") from e
            if text_at(event, "type") == "ERROR":
                status = map_at(event, "object")
                raise ApiError(at(status, "code") or 500, status)
            yield event


def _unreachable(http: httpx2.AsyncClient, cause: Exception) -> Unavailable:
    reason = str(cause) or type(cause).__name__
    hint = "it is retried; check that it runs and that piped may connect to it"
    if _CERTIFICATE_ERROR in reason:
        hint = "name the authority of its certificate at certificate-authority of the kubeconfig"
    return Unavailable(f"the API server at {http.base_url} cannot be reached: {reason}", hint=hint)


class _Transport(httpx2.AsyncHTTPTransport):
    """The connections to an API server; every response is recorded."""

    def __init__(self, connection: Connection, record_response: RecordResponse) -> None:
        super().__init__(
            verify=_tls_context(connection),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS),
            proxy=connection.proxy or None,
            trust_env=False,
        )
        self._record_response = record_response

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.netloc.decode()
        request.extensions["trace"] = _HandshakeCleanup().on_trace
        try:
            response = await super().handle_async_request(request)
        except httpx2.HTTPError:
            self._record_response(host, request.method, _NO_RESPONSE)
            raise
        self._record_response(host, request.method, str(response.status_code))
        return response


class _HandshakeCleanup:
    """Closes a connection after a failed TLS handshake, which httpcore leaks on cancellation."""

    def __init__(self) -> None:
        self._close: list[Callable[[], Awaitable[None]]] = []

    async def on_trace(self, step: str, info: Mapping[str, Any]) -> None:
        """Receives the trace events of httpcore."""
        if step.endswith(".connect_tcp.complete"):
            self._close.append(info["return_value"].aclose)
        elif step.endswith(".start_tls.failed"):
            for close in self._close:
                await close()


@asynccontextmanager
async def open_client(
    connection: Connection,
    *,
    record_response: RecordResponse = not_recorded,
    record_request: RecordRequest = not_recorded,
) -> AsyncIterator[KubernetesClient]:
    """Opens a client of an API server."""
    async with httpx2.AsyncClient(
        base_url=connection.server,
        transport=_Transport(connection, record_response),
        timeout=_TIMEOUT,
        trust_env=False,
    ) as http:
        yield KubernetesClient(
            http, ClusterCredentials(connection), connection.server_name, record_request
        )


def _tls_context(connection: Connection) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=connection.authority or None)
    except ssl.SSLError as e:
        raise UserMistake(
            f"certificate-authority of the kubeconfig is no certificate: {e}",
            hint="give certificates in PEM, at certificate-authority-data in base64",
        ) from e
    if not connection.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if not connection.certificate:
        return context
    # The standard library reads certificates only from files.
    with tempfile.TemporaryDirectory(prefix="pipecd-") as directory:
        file = Path(directory) / "client.pem"
        file.touch(mode=0o600)
        file.write_text(f"{connection.certificate}\n{connection.key}\n")
        try:
            context.load_cert_chain(file)
        except ssl.SSLError as e:
            raise UserMistake(
                f"the client certificate of the kubeconfig is unusable: {e}",
                hint="client-certificate and client-key must be a pair in PEM",
            ) from e
    return context
