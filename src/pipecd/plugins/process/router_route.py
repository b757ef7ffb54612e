# SPDX-License-Identifier: Apache-2.0
"""Chooses the backend of each request, and knows which ones can be used."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pipecd.plugins.process.desired import LOOPBACK
from pipecd.plugins.process.router_stats import Meter, RouteStats, VariantStats, Window
from pipecd.plugins.process.router_weights import Turns

Network: TypeAlias = IPv4Network | IPv6Network
# The part of an IPv6 address that a client cannot choose.
_CLIENT_BITS = 64

if TYPE_CHECKING:
    from pipecd.plugins.process.http_backend import BackendConnection


@dataclass(frozen=True, slots=True)
class Backend:
    """The address of one replica."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Share:
    """What one variant gets: its weight among the variants, and the replicas that serve it.

    A variant of weight 0 gets nothing, even when no other one can serve. `version` names the
    release: when it changes, the windows of the variant begin anew.
    """

    weight: int
    backends: tuple[Backend, ...] = ()
    version: str = ""

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError(f"weight {self.weight} must not be negative")


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, sizes in bytes.

    `connections` are those of a listener, `address_connections` those of one client of it.
    `head` is the time for a whole request head, `idle` for the next request on a connection,
    `body` for the next piece of a request body, `answer` for the head of a response, `stream` for
    the next piece of a response, `tunnel` for the next piece of an upgraded or TCP connection,
    `flush` for what is left to send to one side of a TCP connection when the other one has ended.
    """

    connections: int = 10_000
    address_connections: int = 1_000
    head_size: int = 32 * 1024
    head: float = 10.0
    idle: float = 75.0
    body: float = 60.0
    connect: float = 5.0
    answer: float = 60.0
    stream: float = 300.0
    tunnel: float = 3600.0
    flush: float = 60.0
    linger: float = 2.0
    skip: float = 1.0
    idle_backend: float = 30.0
    idle_backends: int = 128
    trusted_proxies: tuple[Network, ...] = tuple(ip_network(each) for each in LOOPBACK)


class Capacity:
    """How many connections the process may have; the listeners of a router share them.

    A listener may have as many as it leaves free, so that its clients do not take those of others.
    """

    def __init__(self, connections: int) -> None:
        self._free = connections

    def take(self, own: int) -> bool:
        """Takes a connection for a listener that has some already; False if it may not have it."""
        if own >= self._free:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        self._free += 1


class Connection(Protocol):
    """A client's connection, HTTP or TCP."""

    deadline: float

    def expire(self, now: float) -> None:
        """Ends what has taken longer than its deadline."""

    def abort(self) -> None:
        """Ends at once."""


class Target:
    """A backend in use: its idle connections and what is still running on it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.in_flight = 0
        self.idle: list[BackendConnection] = []
        self.skipped_until = 0.0
        self.is_retired = False
        self._emptied = asyncio.Event()

    def begin(self) -> None:
        """Counts a request that is sent to the backend."""
        self.in_flight += 1

    def end(self) -> None:
        """Counts the end of a request."""
        self.in_flight -= 1
        if not self.in_flight:
            self._emptied.set()

    def retire(self) -> None:
        """Closes the idle connections; those in use are closed when their request ends."""
        self.is_retired = True
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()

    async def wait_until_empty(self) -> None:
        """Returns when no request is running on the backend."""
        while self.in_flight:
            self._emptied.clear()
            await self._emptied.wait()


class Variant:
    """A variant in use; replicas take turns, the least busy one first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 0
        self.version = ""
        self.targets: list[Target] = []
        self.meter = Meter()
        self._turn = 0

    def pick(self, now: float) -> Target | None:
        """Returns a replica that is not skipped at this moment."""
        targets = self.targets
        if len(targets) == 1:
            return targets[0] if targets[0].skipped_until <= now else None
        self._turn += 1
        best: Target | None = None
        for offset in range(len(targets)):
            target = targets[(self._turn + offset) % len(targets)]
            if target.skipped_until <= now and (best is None or target.in_flight < best.in_flight):
                best = target
        return best


Choice = tuple[Variant, Target]


class Route:
    """Where the requests of one listener go, and what all its connections share."""

    def __init__(self, limits: Limits, capacity: Capacity) -> None:
        self.limits, self._capacity = limits, capacity
        self.connections: dict[Connection, str] = {}
        """Each with the address or network that it counts for, "" if it is that of a proxy."""
        self.is_closing = False
        self.refused_connections = 0
        self.malformed = 0
        self.unserved = 0
        self.retries = 0
        self._variants: dict[str, Variant] = {}
        self._targets: dict[Backend, Target] = {}
        # Those that are no longer routed to, until nothing runs on them.
        self._retired: set[Target] = set()
        self._serving: list[Variant] = []
        self._turns: Turns | None = None
        self._clients = Counter[str]()

    def admit(self, connection: Connection, address: str) -> bool:
        """Counts a new connection, unless the listener or its client has too many of them."""
        client = "" if self.is_trusted(address) else client_network(address)
        own = len(self.connections)
        if (
            own >= self.limits.connections
            or (client and self._clients[client] >= self.limits.address_connections)
            or not self._capacity.take(own)
        ):
            self.refused_connections += 1
            return False
        self.connections[connection] = client
        self._clients[client] += 1
        return True

    def leave(self, connection: Connection) -> None:
        """Counts the end of a connection that was admitted."""
        client = self.connections.pop(connection, None)
        if client is not None:
            self._capacity.give_back()
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def update(self, shares: Mapping[str, Share]) -> None:
        """Sends the next request by these shares; what is running goes on."""
        wanted = {backend for share in shares.values() for backend in share.backends}
        for backend in self._targets.keys() - wanted:
            self._retire(backend)
        for name, share in shares.items():
            variant = self._variants.setdefault(name, Variant(name))
            if variant.version != share.version:
                variant.version = share.version
                variant.meter.begin_window()
            variant.weight = share.weight
            variant.targets = [
                self._targets.setdefault(backend, Target(backend)) for backend in share.backends
            ]
        for name in self._variants.keys() - shares.keys():
            self._variants[name].weight = 0
            self._variants[name].targets = []
        self._weigh()

    def remove(self, backend: Backend) -> Target | None:
        """Sends nothing more to the backend; returns it when something may still run on it."""
        if backend in self._targets:
            for variant in self._variants.values():
                variant.targets = [t for t in variant.targets if t.backend != backend]
            self._retire(backend)
            self._weigh()
        return next((t for t in self._retired if t.backend == backend), None)

    def _retire(self, backend: Backend) -> None:
        target = self._targets.pop(backend)
        target.retire()
        self._retired = {t for t in self._retired if t.in_flight}
        if target.in_flight:
            self._retired.add(target)

    def _weigh(self) -> None:
        serving = [v for v in self._variants.values() if v.weight and v.targets]
        weights = [v.weight for v in serving]
        if self._turns is None or serving != self._serving or weights != self._turns.weights:
            self._turns = Turns(weights) if serving else None
        self._serving = serving

    def choose(self, now: float) -> Choice | None:
        """Returns the variant whose turn it is and one of its replicas.

        Without a usable one, another variant's; None when nothing is routed to.
        """
        if self._turns is None:
            return None
        variant = self._serving[self._turns.next()]
        target = variant.pick(now)
        return (variant, target) if target is not None else self.choose_other(variant, (), now)

    def choose_other(
        self, variant: Variant, tried: Collection[Target], now: float
    ) -> Choice | None:
        """Returns a replica that was not tried: of the same variant, else of another one.

        Skipped ones come last: a request is not refused before every replica was asked.
        """
        left = [
            (each is not variant, target.in_flight, each, target)
            for each in self._serving
            for target in each.targets
            if target not in tried
        ]
        if not left:
            return None
        _, _, chosen, target = min(left, key=lambda row: (row[3].skipped_until > now, *row[:2]))
        return chosen, target

    def skip(self, target: Target, now: float) -> None:
        """Leaves out a backend for a moment, unless all others cannot serve either."""
        target.skipped_until = now + self.limits.skip

    def is_trusted(self, address: str) -> bool:
        """Tells whether what a client says about the clients behind it counts."""
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        return any(ip in network for network in self.limits.trusted_proxies)

    def in_flight(self) -> int:
        """Returns how many requests are running."""
        return sum(v.meter.in_flight for v in self._variants.values())

    def expire(self, now: float) -> None:
        """Ends connections whose deadline has passed, those to backends too."""
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expire(now)
        for target in self._targets.values():
            old = now - self.limits.idle_backend
            for idle in [c for c in target.idle if c.idle_since < old]:
                idle.close()

    def window(self, variant: str, now: float, seconds: float) -> Window:
        """Returns what a variant did in the last seconds."""
        if variant not in self._variants:
            return Window(seconds, 0, 0)
        return self._variants[variant].meter.window(now, seconds)

    def stats(self) -> RouteStats:
        """Returns all counters."""
        return RouteStats(
            connections=len(self.connections),
            refused_connections=self.refused_connections,
            malformed=self.malformed,
            unserved=self.unserved,
            retries=self.retries,
            variants={name: _stats_of(variant) for name, variant in self._variants.items()},
        )

    def close(self) -> None:
        """Closes the idle connections to backends."""
        for target in self._targets.values():
            target.retire()


def client_network(address: str) -> str:
    """Returns what of an address one client has: an IPv6 client chooses the rest."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    return str(IPv6Network((int(ip), _CLIENT_BITS), strict=False))


def _stats_of(variant: Variant) -> VariantStats:
    meter = variant.meter
    return VariantStats(
        weight=variant.weight,
        version=variant.version,
        backends=len(variant.targets),
        requests=meter.requests,
        errors=meter.errors,
        failed_connections=meter.failed_connections,
        in_flight=meter.in_flight,
        statuses=meter.statuses(),
        latency=meter.latency(),
        last_failure=meter.last_failure,
    )


def shares_of(
    variants: Mapping[str, Share | tuple[int, Sequence[Backend]]],
) -> dict[str, Share]:
    """Returns shares, also of those that are written as pairs."""
    return {
        name: share if isinstance(share, Share) else Share(share[0], tuple(share[1]))
        for name, share in variants.items()
    }
