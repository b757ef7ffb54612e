# SPDX-License-Identifier: Apache-2.0
"""IP addresses and networks: which belong to the public Internet."""

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)

Address = IPv4Address | IPv6Address
Networks = tuple[IPv4Network | IPv6Network, ...]

# The special-purpose registry of IANA (RFC 6890), multicast, and what clouds answer on themselves.
_NOT_PUBLIC_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "168.63.129.16/32",  # The host agent of Azure.
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
        ),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "3ffe::/16"))
)
# A translator of these prefixes connects to the IPv4 address in the last 32 bits (RFC 6052).
_EMBEDDING_SUFFIX = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96")))


def parse_networks(texts: Iterable[str]) -> Networks:
    """Parses networks in CIDR notation and single addresses; ValueError if one is neither."""
    return tuple(ip_network(text.strip(), strict=False) for text in texts if text.strip())


def is_public(address: Address) -> bool:
    """Whether the address, and the IPv4 address it embeds, belongs to the public Internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    embedded = embedded_ipv4(address)
    if embedded is not None:
        return is_public(embedded)
    return address in _GLOBAL_UNICAST and not any(address in n for n in _NOT_PUBLIC_V6)


def embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv4-mapped, NAT64 or 6to4 address leads to."""
    if any(address in network for network in _EMBEDDING_SUFFIX):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def is_in(address: Address, networks: Networks) -> bool:
    """Whether one of the networks contains the address or the IPv4 address it embeds."""
    embedded = embedded_ipv4(address) if isinstance(address, IPv6Address) else None
    return any(
        address in network or (embedded is not None and embedded in network) for network in networks
    )
