# SPDX-License-Identifier: Apache-2.0
"""Opens the filestore of the configuration."""

import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pipecd.config.controlplane import FilestoreSpec
from pipecd.controlplane.filestore import Files, VersionedFile
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.errors import NoDriver, UserMistake
from pipecd.observe.operations import ObservedOperation, OperationObserver

_STORE = "filestore"


@asynccontextmanager
async def open_filestore(
    spec: FilestoreSpec, *, observers: Sequence[OperationObserver] = ()
) -> AsyncIterator[Files]:
    """Opens the filestore and closes it at the end of the context."""
    # The drivers of clouds are optional dependencies.
    match spec.type:
        case "LOCAL":
            files = await LocalFiles.open(Path(spec.config.path))
            yield InstrumentedFiles(files, observers)
        case "S3" | "MINIO":
            try:
                from pipecd.controlplane.filestore.s3 import open_minio, open_s3  # noqa: PLC0415
            except ModuleNotFoundError as e:
                raise NoDriver("S3 and MinIO", extra="s3") from e
            open_bucket = open_s3 if spec.type == "S3" else open_minio
            async with open_bucket(spec.config) as bucket:
                yield InstrumentedFiles(bucket, observers)
        case "GCS":
            try:
                with warnings.catch_warnings():
                    # The driver warns about a missing package that only its gRPC client needs.
                    warnings.simplefilter("ignore", ImportWarning)
                    from pipecd.controlplane.filestore.gcs import open_gcs  # noqa: PLC0415
            except ModuleNotFoundError as e:
                raise NoDriver("Google Cloud Storage", extra="gcp") from e
            async with open_gcs(spec.config) as bucket:
                yield InstrumentedFiles(bucket, observers)
        case _:
            raise UserMistake(
                f"filestore type {spec.type!r} is unknown", hint="use LOCAL, S3, MINIO or GCS"
            )


class InstrumentedFiles:
    """Reports each operation of any filestore to the observers, for metrics and traces."""

    def __init__(self, files: Files, observers: Sequence[OperationObserver]) -> None:
        self._files, self._observers = files, tuple(observers)

    async def get(self, path: str) -> bytes:
        with ObservedOperation(self._observers, _STORE, "get"):
            return await self._files.get(path)

    async def put(self, path: str, content: bytes) -> None:
        with ObservedOperation(self._observers, _STORE, "put"):
            await self._files.put(path, content)

    async def get_versioned(self, path: str) -> VersionedFile:
        with ObservedOperation(self._observers, _STORE, "get"):
            return await self._files.get_versioned(path)

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        with ObservedOperation(self._observers, _STORE, "put"):
            await self._files.replace(path, content, version=version)

    async def delete(self, path: str) -> None:
        with ObservedOperation(self._observers, _STORE, "delete"):
            await self._files.delete(path)

    async def list(self, prefix: str) -> tuple[str, ...]:
        with ObservedOperation(self._observers, _STORE, "list"):
            return await self._files.list(prefix)
