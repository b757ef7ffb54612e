# SPDX-License-Identifier: Apache-2.0
"""Where a request comes from: from which machine, and from a page of which site."""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from pipecd.model.errors import UserMistake

_DEFAULT_PORTS = {"http": 80, "https": 443}

Networks = tuple[IPv4Network | IPv6Network, ...]


def networks(texts: Iterable[str]) -> Networks:
    """Networks and single addresses, as they are written in a list."""
    try:
        return tuple(ip_network(text.strip(), strict=False) for text in texts if text.strip())
    except ValueError as e:
        raise UserMistake(
            f"the list of trusted proxies is not understood: {e}",
            hint="write addresses or networks such as 10.0.0.0/8",
        ) from e


def client_of(peer: str, forwarded: str, trusted: Networks) -> str:
    """The machine that sent a request, past the proxies that are trusted to tell it.

    `forwarded` is what `X-Forwarded-For` says. Anybody can begin it with anything, so it is read
    from its end, and no further than the first address that is not one of our proxies.
    """
    client = peer
    for hop in reversed(forwarded.split(",")):
        if not (hop.strip() and _is_in(client, trusted)):
            break
        client = hop.strip()
    return client


def _is_in(address: str, trusted: Networks) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in trusted)


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Reads what browsers say about where a request comes from; names are in lower case.

    Programs say nothing and bring no cookie of anybody unless they own it.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        # Unlike `Origin`, this is told by the browser for the address that it sees itself, so a
        # proxy that changes `Host` does no harm.
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    # A page of another site cannot add the second one without being asked for permission first.
    here = (headers.get(name, "") for name in ("host", "x-forwarded-host"))
    return not any(_is_here(origin, host) for host in here)


def _is_here(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        here = urlsplit(f"//{host}")
        usual = _DEFAULT_PORTS.get(parts.scheme)
        theirs, ours = parts.port or usual, here.port or usual
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.hostname, theirs) == (here.hostname, ours)
