# SPDX-License-Identifier: Apache-2.0
"""The client of a gRPC call, also behind the relay of the shared port."""

import asyncio
import re
from pathlib import Path
from urllib.parse import unquote

# A pseudo-header, so that no client can send it.
PEER = ":peer"
_RELAYED = re.compile(r"relay-(?P<number>\d+)-(?P<address>.+)")
_TCP = re.compile(r"ipv[46]:\[?(?P<address>[^\]]+?)\]?:\d+")


def relay_name(directory: Path, number: int, address: str) -> Path:
    """The name that the relay binds its end to, so that the gRPC server learns of the client."""
    return directory / f"relay-{number}-{address or 'unknown'}"


def peer_address(peer: str) -> str:
    """The address in the peer of a gRPC context; empty if it has none."""
    peer = unquote(peer)
    if match := _TCP.fullmatch(peer):
        return match["address"]
    match = _relayed(peer)
    return match["address"] if match else ""


def relay_number(peer: str) -> int:
    """The number in the name of a relay; 0 if the peer is none."""
    match = _relayed(unquote(peer))
    return int(match["number"]) if match else 0


def _relayed(peer: str) -> re.Match[str] | None:
    return _RELAYED.fullmatch(peer.rpartition("/")[2]) if peer.startswith("unix:") else None


def client_host(transport: asyncio.BaseTransport) -> str:
    """The address of the client; empty if the transport knows none."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
