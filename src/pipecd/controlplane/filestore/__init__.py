# SPDX-License-Identifier: Apache-2.0
"""Files of a control plane in a local directory, S3 or GCS, and the rules for their paths."""

from dataclasses import dataclass
from typing import Protocol

from pipecd.model.errors import Conflict, NotFound, StorageUnavailable, UserMistake

# A local filestore writes temporary files here, so no object may have such a path.
TEMPORARY_DIRECTORY = ".incoming"
# In bytes: a file name, and a key of S3 and GCS.
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 1024

_CONTENT_TYPES = {"json": "application/json", "txt": "text/plain; charset=utf-8"}


@dataclass(frozen=True)
class VersionedFile:
    """The content of an object, and a text that changes with it."""

    content: bytes
    version: str


class FileChanged(Conflict):
    """The object is no longer the one that was read before."""


class Files(Protocol):
    """A bucket of objects under the paths of the file layout (`log/…`, `insights/…`)."""

    async def get(self, path: str) -> bytes:
        """Returns the whole object, or raises NotFound."""
        ...

    async def put(self, path: str, content: bytes) -> None:
        """Writes the whole object; a reader sees the old or the new one, never a part."""
        ...

    async def get_versioned(self, path: str) -> VersionedFile:
        """Returns the whole object and its version, or raises NotFound."""
        ...

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        """Writes the whole object if it still has this version; an empty one means no object.

        Otherwise raises FileChanged. However late the write arrives, it replaces no newer object.
        """
        ...

    async def delete(self, path: str) -> None:
        """Removes the object; a missing object is no error."""
        ...

    async def list(self, prefix: str) -> tuple[str, ...]:
        """Returns the paths that start with the prefix, sorted."""
        ...


def check_path(path: str) -> None:
    """Rejects a path that is not valid in every filestore."""
    names = path.split("/")
    invalid = any(name in ("", ".", "..") or "\0" in name for name in names)
    if invalid or names[0] == TEMPORARY_DIRECTORY:
        raise UserMistake(f"invalid object path {path!r}")
    too_long = len(path.encode()) > MAX_PATH_BYTES
    if too_long or any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise UserMistake(f"object path too long: {path[:60]}…")


def check_prefix(prefix: str) -> None:
    """Rejects a prefix that no valid path starts with; its last name may be incomplete."""
    directory = prefix.rpartition("/")[0]
    if directory:
        check_path(directory)
    if "\0" in prefix:
        raise UserMistake(f"invalid path prefix {prefix!r}")


def content_type(path: str) -> str:
    """The content type for the suffix of the path."""
    return _CONTENT_TYPES.get(path.rpartition(".")[2], "application/octet-stream")


def missing_file(path: str) -> NotFound:
    """The error for an object that does not exist."""
    return NotFound(f"file {path} is not found")


def changed_file(path: str) -> FileChanged:
    """The error for an object that another process has written."""
    return FileChanged(f"another process has written {path} meanwhile", hint="try again")


def bucket_unavailable(path: str, error: Exception) -> StorageUnavailable:
    """The error for a bucket that cannot be read or written."""
    return StorageUnavailable(
        f"filestore unavailable for {path}: {error}",
        hint="check the bucket, the network and the permissions of this server",
    )
