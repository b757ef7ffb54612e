# SPDX-License-Identifier: Apache-2.0
"""Where an HTTP request comes from: the client's address, and the site of the page that sent it."""

from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from pipecd.model.address import Networks, parse_networks
from pipecd.model.errors import UserMistake
from pipecd.wire.credentials import Metadata
from pipecd.wire.peer import PEER, peer_address

_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_trusted_proxies(texts: Iterable[str]) -> Networks:
    """Parses the networks and addresses of `--trusted-proxy`."""
    try:
        return parse_networks(texts)
    except ValueError as e:
        raise UserMistake(
            f"invalid list of trusted proxies: {e}",
            hint="write addresses or networks such as 10.0.0.0/8",
        ) from e


def client_address(peer: str, forwarded: str, trusted: Networks) -> str:
    """The address of the client behind any trusted proxies.

    `forwarded` is the value of `X-Forwarded-For`. A client can put anything at its beginning, so it
    is read from its end, and no further than the first address that is not a trusted proxy.
    """
    client = peer
    for hop in reversed(forwarded.split(",")):
        try:
            address = ip_address(client)
        except ValueError:
            break
        if not hop.strip() or not any(address in network for network in trusted):
            break
        client = hop.strip()
    return client


def lockout_source(address: str) -> str:
    """The client that failed attempts are counted for: an IPv4 address, or a network of IPv6.

    A client of IPv6 has as many addresses as it likes, all of one /64.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def call_source(metadata: Metadata, trusted: Networks) -> str:
    """The client of a gRPC call, for counting its failed attempts."""
    values = {name: value for name, value in metadata if name in (PEER, "x-forwarded-for")}
    peer, forwarded = (str(values.get(name, "")) for name in (PEER, "x-forwarded-for"))
    return lockout_source(client_address(peer_address(peer), forwarded, trusted))


def is_cross_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent the request for a page of another site; header names in lower case.

    Programs send none of these headers, and carry no cookie but their own.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        # The browser compares the addresses it sees itself, so unlike with `Origin` a proxy that
        # rewrites `Host` does not matter.
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    # A page of another site cannot set X-Forwarded-Host without a CORS preflight.
    hosts = (headers.get(name, "") for name in ("host", "x-forwarded-host"))
    return not any(_is_same_host(origin, host) for host in hosts)


def _is_same_host(origin: str, host: str) -> bool:
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"//{host}")
        default = _DEFAULT_PORTS.get(theirs.scheme)
        their_port, our_port = theirs.port or default, ours.port or default
    except ValueError:
        return False
    return bool(theirs.hostname) and (theirs.hostname, their_port) == (ours.hostname, our_port)
