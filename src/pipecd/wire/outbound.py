# SPDX-License-Identifier: Apache-2.0
"""HTTP requests to URLs that others than the operator choose: public addresses, bounded answers.

The name of a host is resolved once, every address is checked, and the connection is made to a
checked address, so a name that resolves differently a second time gains nothing. Redirects are
requests of their own and are checked as such.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from pipecd.model.address import Address, Networks, is_in, is_public, parse_networks

MAX_RESPONSE_BYTES = 4 << 20
_SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)


@dataclass(frozen=True)
class OutboundPolicy:
    """The destinations of requests: public addresses, and what the operator allows besides.

    `hosts` are allowed by name, whatever their addresses are. Others than those that the operator
    allows must be reached by https, if it is required.
    """

    networks: Networks = ()
    hosts: frozenset[str] = frozenset()
    requires_https: bool = True

    def permits(self, host: str, addresses: Iterable[Address]) -> bool:
        """Whether requests may go to the host, all of whose addresses are given."""
        return host.lower() in self.hosts or all(
            is_public(address) or is_in(address, self.networks) for address in addresses
        )

    def permits_plain_http(self, host: str, addresses: Collection[Address]) -> bool:
        """Whether requests without TLS may go to the host: only to what the operator allows."""
        return host.lower() in self.hosts or (
            bool(addresses) and all(is_in(address, self.networks) for address in addresses)
        )


PUBLIC_DESTINATIONS = OutboundPolicy()
# For what the operator configures.
ANY_DESTINATION = OutboundPolicy(parse_networks(("0.0.0.0/0", "::/0")), requires_https=False)


class ForbiddenDestination(httpx2.ConnectError):
    """The host resolves to no address, or to one that the policy does not permit.

    The two are not distinguished: otherwise the error would list the names of an internal network.
    """

    def __init__(self, host: str) -> None:
        super().__init__(f"{host} does not resolve to a public address")


class PlainHttp(ForbiddenDestination):
    """The URL has no TLS: anyone on the way could read the secrets of the request."""

    def __init__(self, host: str) -> None:
        httpx2.ConnectError.__init__(self, f"{host} must be reached by https")


class ResponseTooLarge(httpx2.ReadError):
    """The response is larger than the limit of the transport."""


class OutboundTransport(httpx2.AsyncBaseTransport):
    """Connects to destinations that the policy permits; responses are limited and uncompressed.

    Requests go through `proxy`, whose address is checked too, else through the proxies of the
    environment, which are the operator's. A proxy resolves names itself: the destination is refused
    if it resolves here to an address that is not permitted. ValueError if `proxy` is not a URL.
    """

    def __init__(
        self, policy: OutboundPolicy, *, proxy: str = "", limit: int = MAX_RESPONSE_BYTES
    ) -> None:
        self._policy, self._limit, self._proxy = policy, limit, proxy
        self._tls = _tls_context()
        self._transports: dict[str, httpx2.AsyncHTTPTransport] = {}
        if proxy:
            self._transport(proxy)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A compressed response would have its size checked only after it is in memory.
        request.headers["Accept-Encoding"] = "identity"
        host = request.url.host
        proxy = self._proxy or _environment_proxy(request.url)
        needs_https = self._policy.requires_https and request.url.scheme != "https"
        if proxy or needs_https:
            addresses = await _resolve(host, request.url.port or 0)
            if not self._policy.permits(host, addresses):
                raise ForbiddenDestination(host)
            if needs_https and not self._policy.permits_plain_http(host, addresses):
                raise PlainHttp(host)
        response = await self._transport(proxy).handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError(f"{host} sent a compressed response to a request for none")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _LimitedStream(response.stream, self._limit)
        return response

    async def aclose(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()

    def _transport(self, proxy: str) -> httpx2.AsyncHTTPTransport:
        if proxy not in self._transports:
            # The proxies of the environment are the operator's choice.
            is_checked = not proxy or proxy == self._proxy
            policy = self._policy if is_checked else None
            self._transports[proxy] = _CheckedTransport(policy, self._tls, proxy)
        return self._transports[proxy]


class _CheckedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, policy: OutboundPolicy | None, tls: ssl.SSLContext, proxy: str) -> None:
        super().__init__(verify=tls, trust_env=False, proxy=proxy or None)
        if policy is not None:
            self._pool._network_backend = _CheckedBackend(policy, self._pool._network_backend)


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Opens the connections of a pool: resolves, checks, and connects to a checked address."""

    def __init__(self, policy: OutboundPolicy, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._policy, self._backend = policy, backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore.
        local_address: str | None = None,
        socket_options: Iterable[_SocketOption] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await _resolve(host, port)
        if not addresses or not self._policy.permits(host, addresses):
            raise ForbiddenDestination(host)
        # An address that does not answer leaves time for the next one.
        share = None if timeout is None else timeout / len(addresses)
        for address in addresses[:-1]:
            try:
                return await self._backend.connect_tcp(
                    str(address), port, share, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(
            str(addresses[-1]), port, share, local_address, socket_options
        )

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream, self._limit = stream, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for chunk in self._stream:
            received += len(chunk)
            if received > self._limit:
                raise ResponseTooLarge(f"the response is larger than {self._limit >> 20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@cache
def _tls_context() -> ssl.SSLContext:
    """Reading the trusted certificates takes tens of milliseconds, so they are read once."""
    return httpx2.create_ssl_context()


async def _resolve(host: str, port: int) -> list[Address]:
    """Every address of the host, in the order in which to try them."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    # The scope of a link-local address (fe80::1%eth0) is not part of the address.
    texts = (str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found)
    return [ip_address(text) for text in dict.fromkeys(texts)]


def _environment_proxy(url: httpx2.URL) -> str:
    if proxy_bypass(url.host):
        return ""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all") or ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"
