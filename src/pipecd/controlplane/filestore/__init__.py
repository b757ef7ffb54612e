# SPDX-License-Identifier: Apache-2.0
"""Files of a control plane in a local directory, S3 or GCS."""

from typing import Protocol


class Files(Protocol):
    """A bucket of objects under the paths of the file layout (`log/…`, `insights/…`)."""

    async def get(self, path: str) -> bytes:
        """Returns the whole object, or raises NotFound."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Writes the whole object; a reader sees the old or the new one, never a part."""
        ...

    async def delete(self, path: str) -> None:
        """Removes the object; a missing object is no error."""
        ...

    async def list(self, prefix: str) -> tuple[str, ...]:
        """Returns the paths that start with the prefix, sorted."""
        ...
