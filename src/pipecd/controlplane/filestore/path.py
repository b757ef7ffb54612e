# SPDX-License-Identifier: Apache-2.0
"""Which paths an object may have and what is said of one, the same in every filestore."""

from pipecd.model.errors import NotFound, StorageUnavailable, UserMistake

# Half-written objects of a local filestore live here; no object may have such a path.
INCOMING = ".incoming"
# A name of a file, and a key of S3 and GCS, in bytes.
LONGEST_PART, LONGEST = 255, 1024

TYPES = {"json": "application/json", "txt": "text/plain; charset=utf-8"}


def check_path(path: str) -> None:
    """Refuses what is no path of an object everywhere."""
    parts = path.split("/")
    bad = any(part in ("", ".", "..") or "\0" in part for part in parts)
    if bad or parts[0] == INCOMING:
        raise UserMistake(f"{path!r} is not a path of an object")
    if len(path.encode()) > LONGEST or any(len(part.encode()) > LONGEST_PART for part in parts):
        raise UserMistake(f"the path of an object is too long: {path[:60]}…")


def check_prefix(prefix: str) -> None:
    """Refuses a prefix with which no path can begin; its last part may be unfinished."""
    directory = prefix.rpartition("/")[0]
    if directory:
        check_path(directory)
    if "\0" in prefix:
        raise UserMistake(f"{prefix!r} is not the beginning of a path")


def content_type(path: str) -> str:
    return TYPES.get(path.rpartition(".")[2], "application/octet-stream")


def missing(path: str) -> NotFound:
    return NotFound(f"file {path} is not found")


def unusable(path: str, error: Exception) -> StorageUnavailable:
    return StorageUnavailable(
        f"the filestore cannot be used for {path}: {error}",
        hint="look at the bucket, the network and the rights of this server",
    )
