# SPDX-License-Identifier: Apache-2.0
"""Requests to one API server, as plain values in both directions."""

import asyncio
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import httpx2

from pipecd.plugins.kubernetes.cluster.credentials import Credentials
from pipecd.plugins.kubernetes.cluster.kubeconfig import Connection
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.figures import uncounted
from pipecd.plugins.kubernetes.manifest.body import at, map_at, text_at
from pipecd.sdk import Backoff, PipecdError, Unavailable, UserMistake
from pipecd.sdk.diff import is_map

CONNECTIONS = 16
_TIMEOUT = httpx2.Timeout(30.0, connect=5.0, pool=None)
# A watch is silent while nothing happens.
_WATCH_TIMEOUT = httpx2.Timeout(30.0, connect=5.0, read=None, pool=None)
# An API server that restarts is back within so many tries.
_TRIES = 9
_BACKOFF = Backoff(first=0.25, longest=8.0)
_NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
_BUSY = (429, 500, 502, 503, 504)
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
# Of an object, or of each in a list, only the metadata.
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# What dashboards know a request by that got no answer.
_NO_ANSWER = "<error>"

# Hears the host, the method and the code of every answer.
Answered: TypeAlias = Callable[[str, str, str], None]


class Asked(Protocol):
    """Hears what was asked of the API server, once for all tries, and whether it did it."""

    def __call__(self, command: str, *, is_success: bool) -> None: ...


class Client:
    """One API server; a request is repeated while the server is away or busy."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        credentials: Credentials,
        server_name: str = "",
        asked: Asked = uncounted,
    ) -> None:
        self._http = http
        self._credentials = credentials
        self._asked = asked
        self._extensions = {"sni_hostname": server_name} if server_name else None

    async def get(self, path: str, *, accept: str = "application/json", **query: str) -> Any:
        """Reads an object or a list."""
        with self._asking("get"):
            return await self._send("GET", path, query, accept=accept)

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        """Creates an object."""
        with self._asking("create"):
            return await self._send("POST", path, query, body)

    async def replace(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        """Puts an object in the place of another."""
        with self._asking("replace"):
            return await self._send("PUT", path, query, body)

    async def patch(self, path: str, body: Any, *, form: str, **query: str) -> Any:
        """Changes an object."""
        with self._asking("apply"):
            return await self._send("PATCH", path, query, body, form=form)

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Deletes an object; what it owns goes with it."""
        with self._asking("delete"):
            return await self._send("DELETE", path, {}, body)

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[Any]]:
        """Opens a watch: its events arrive until the server ends it, or refuses to go on."""
        headers = await self._headers("application/json")
        try:
            async with self._http.stream(
                "GET",
                path,
                params={**query, "watch": "true"},
                headers=headers,
                timeout=_WATCH_TIMEOUT,
                extensions=self._extensions,
            ) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise self._refusal(answer)
                yield _events(answer)
        except httpx2.HTTPError as e:
            raise _away(self._http, e) from e

    @contextmanager
    def _asking(self, command: str) -> Iterator[None]:
        try:
            yield
        except PipecdError as e:
            # That an object is not there is an answer like any other.
            is_answer = isinstance(e, Refusal) and e.is_missing and command in ("get", "delete")
            self._asked(command, is_success=is_answer)
            raise
        self._asked(command, is_success=True)

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Any = None,
        *,
        form: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(_TRIES):
            headers = await self._headers(accept)
            if content is not None:
                headers["content-type"] = form
            try:
                answer = await self._http.request(
                    method,
                    path,
                    params=dict(query),
                    content=content,
                    headers=headers,
                    extensions=self._extensions,
                )
            except httpx2.HTTPError as e:
                # A creation may have happened; who creates reckons with what is there.
                if attempt + 1 == _TRIES:
                    raise _away(self._http, e) from e
                await asyncio.sleep(_BACKOFF.after(attempt + 1))
                continue
            if answer.status_code < 400:
                return answer.json()
            refusal = self._refusal(answer)
            if not self._again(refusal, attempt):
                raise refusal
            await asyncio.sleep(refusal.retry_after or _BACKOFF.after(attempt + 1))
        raise AssertionError("every last try returns or raises")

    def _again(self, refusal: Refusal, attempt: int) -> bool:
        if refusal.code == 401 and attempt == 0:
            self._credentials.forget()
            return True
        is_busy = refusal.code in _BUSY and not refusal.is_malformed
        return is_busy and attempt + 1 < _TRIES

    async def _headers(self, accept: str) -> dict[str, str]:
        headers = {"accept": accept}
        authorization = await self._credentials.header()
        if authorization:
            headers["authorization"] = authorization
        return headers

    @staticmethod
    def _refusal(answer: httpx2.Response) -> Refusal:
        try:
            status = answer.json()
        except ValueError:
            status = {"message": answer.text.strip()[:500]}
        hint = ""
        if answer.status_code == 401:
            hint = "the API server does not know this piped; correct the kubeconfig or its token"
        if answer.status_code == 403 and text_at(status, "reason") == "Forbidden":
            hint = "give the piped a role that allows it"
        return Refusal(answer.status_code, status if is_map(status) else {}, hint=hint)


async def _events(answer: httpx2.Response) -> AsyncIterator[Any]:
    async for line in answer.aiter_lines():
        if line:
            try:
                event = json.loads(line)
            except ValueError as e:
                raise Unavailable("the API server ended a watch in the middle of a line") from e
            if text_at(event, "type") == "ERROR":
                status = map_at(event, "object")
                raise Refusal(at(status, "code") or 500, status)
            yield event


def _away(http: httpx2.AsyncClient, cause: Exception) -> Unavailable:
    why = str(cause) or type(cause).__name__
    hint = "it is tried again; check that it runs and that piped may connect to it"
    if _NOT_TRUSTED in why:
        hint = "name the authority of its certificate at certificate-authority of the kubeconfig"
    return Unavailable(f"the API server at {http.base_url} cannot be reached: {why}", hint=hint)


class _Road(httpx2.AsyncHTTPTransport):
    """The connections to an API server; every answer is told when it begins to arrive."""

    def __init__(self, connection: Connection, answered: Answered) -> None:
        super().__init__(
            verify=_tls(connection),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS),
            proxy=connection.proxy or None,
            trust_env=False,
        )
        self._answered = answered

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.netloc.decode()
        request.extensions["trace"] = _Handshake().follow
        try:
            answer = await super().handle_async_request(request)
        except httpx2.HTTPError:
            self._answered(host, request.method, _NO_ANSWER)
            raise
        self._answered(host, request.method, str(answer.status_code))
        return answer


class _Handshake:
    """Closes a connection that was not secured, which httpcore forgets when a call is cancelled."""

    def __init__(self) -> None:
        self._close: list[Callable[[], Awaitable[None]]] = []

    async def follow(self, step: str, told: Mapping[str, Any]) -> None:
        """Hears of the steps of a request, as httpcore names them."""
        if step.endswith(".connect_tcp.complete"):
            self._close.append(told["return_value"].aclose)
        elif step.endswith(".start_tls.failed"):
            for close in self._close:
                await close()


@asynccontextmanager
async def open_client(
    connection: Connection, *, answered: Answered = uncounted, asked: Asked = uncounted
) -> AsyncIterator[Client]:
    """Opens connections to an API server, made when they are needed."""
    async with httpx2.AsyncClient(
        base_url=connection.server,
        transport=_Road(connection, answered),
        timeout=_TIMEOUT,
        trust_env=False,
    ) as http:
        yield Client(http, Credentials(connection), connection.server_name, asked)


def _tls(connection: Connection) -> ssl.SSLContext:
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
    if connection.certificate:
        _show(context, connection)
    return context


def _show(context: ssl.SSLContext, connection: Connection) -> None:
    """Lets a connection show a certificate, which the standard library reads from files only."""
    with tempfile.TemporaryDirectory(prefix="pipecd-") as directory:
        pair = Path(directory) / "client.pem"
        pair.touch(mode=0o600)
        pair.write_text(f"{connection.certificate}\n{connection.key}\n")
        try:
            context.load_cert_chain(pair)
        except ssl.SSLError as e:
            raise UserMistake(
                f"the client certificate of the kubeconfig is unusable: {e}",
                hint="client-certificate and client-key must be a pair in PEM",
            ) from e
