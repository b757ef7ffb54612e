# SPDX-License-Identifier: Apache-2.0
"""Blobs by path and short-lived shared facts by key."""

from typing import Protocol


class Files(Protocol):
    """A bucket of objects at the paths of the file layout (`log/…`, `insights/…`)."""

    async def get(self, path: str) -> bytes:
        """The whole object, or NotFound."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Writes the whole object; a reader sees the old or the new one, never a part."""
        ...

    async def delete(self, path: str) -> None:
        """Removes the object; a missing one is no error."""
        ...

    async def list(self, prefix: str) -> tuple[str, ...]:
        """The paths that start with the prefix, sorted."""
        ...


class Cache(Protocol):
    """Facts that may be lost at any time, shared by all replicas of a control plane."""

    async def get(self, key: str) -> bytes | None: ...

    async def put(self, key: str, value: bytes, *, ttl_seconds: float | None = None) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def put_field(self, key: str, field: str, value: bytes) -> None:
        """Sets one field of a hash."""
        ...

    async def get_field(self, key: str, field: str) -> bytes | None: ...

    async def fields(self, key: str) -> dict[str, bytes]:
        """All fields of a hash; empty when there is none."""
        ...

    async def delete_field(self, key: str, field: str) -> None: ...
