# SPDX-License-Identifier: Apache-2.0
"""A filestore whose reads and writes are counted and traced."""

from collections.abc import Sequence

from pipecd.controlplane.filestore import Files
from pipecd.observe.operations import ObservedOperation, OperationObserver

_PART = "filestore"


class WatchedFiles:
    """Passes everything on and tells watchers of it."""

    def __init__(self, files: Files, watchers: Sequence[OperationObserver]) -> None:
        self._files, self._watchers = files, tuple(watchers)

    async def get(self, path: str) -> bytes:
        with ObservedOperation(self._watchers, _PART, "get"):
            return await self._files.get(path)

    async def put(self, path: str, content: bytes) -> None:
        with ObservedOperation(self._watchers, _PART, "put"):
            await self._files.put(path, content)

    async def delete(self, path: str) -> None:
        with ObservedOperation(self._watchers, _PART, "delete"):
            await self._files.delete(path)

    async def list(self, prefix: str) -> tuple[str, ...]:
        with ObservedOperation(self._watchers, _PART, "list"):
            return await self._files.list(prefix)
