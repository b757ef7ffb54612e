# SPDX-License-Identifier: Apache-2.0
"""The cache that the replicas of a control plane share, in memory or on Redis."""

from collections.abc import Callable
from typing import Protocol

# Called after each read with whether it was a hit.
OnRead = Callable[[bool], None]


class Cache(Protocol):
    """Values by key, and hashes; any of them may be evicted at any time."""

    async def get(self, key: str) -> bytes | None: ...

    async def put(self, key: str, value: bytes, *, ttl_seconds: float | None = None) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def put_field(self, key: str, field: str, value: bytes) -> None:
        """Sets one field of a hash."""
        ...

    async def get_field(self, key: str, field: str) -> bytes | None: ...

    async def fields(self, key: str) -> dict[str, bytes]:
        """Returns all fields of a hash; empty when there is none."""
        ...

    async def delete_field(self, key: str, field: str) -> None: ...
