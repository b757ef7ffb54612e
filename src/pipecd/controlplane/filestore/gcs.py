# SPDX-License-Identifier: Apache-2.0
"""Objects in a bucket of Google Cloud Storage."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import structlog
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.exceptions import RequestException

from pipecd.config.controlplane import FilestoreConfig
from pipecd.controlplane.filestore.path import (
    check_path,
    check_prefix,
    content_type,
    missing,
    unusable,
)
from pipecd.controlplane.filestore.worker import Workers
from pipecd.model.errors import PipecdError, UserMistake

T = TypeVar("T")

log = structlog.get_logger()

# As many as the driver keeps connections open.
THREADS = 10
# A thread cannot be told to stop, so that every call must end by itself.
LIMITS: dict[str, Any] = {
    "timeout": (3, 10),
    "retry": cast("Any", DEFAULT_RETRY).with_timeout(20.0),
}


class GcsFiles:
    """A bucket that all replicas share."""

    def __init__(self, client: Any, bucket: str, workers: Workers) -> None:
        self._client = client
        self._bucket = client.bucket(bucket)
        self._workers = workers

    async def get(self, path: str) -> bytes:
        check_path(path)
        return await self._do(lambda: self._blob(path).download_as_bytes(**LIMITS), path)

    async def put(self, path: str, content: bytes) -> None:
        check_path(path)
        kind = content_type(path)

        def write() -> None:
            self._blob(path).upload_from_string(content, content_type=kind, **LIMITS)

        await self._do(write, path)

    async def delete(self, path: str) -> None:
        check_path(path)

        def remove() -> None:
            try:
                self._blob(path).delete(**LIMITS)
            except exceptions.NotFound as e:
                # A bucket that is missing is another matter than an object.
                if "bucket" in str(e).lower() and not self._bucket.exists(**LIMITS):
                    raise

        await self._do(remove, path)

    async def list(self, prefix: str) -> tuple[str, ...]:
        check_prefix(prefix)

        def walk() -> tuple[str, ...]:
            found = self._client.list_blobs(self._bucket, prefix=prefix, **LIMITS)
            return tuple(sorted(blob.name for blob in found))

        return await self._do(walk, prefix)

    async def check_bucket(self) -> None:
        """Tells at the start what would fail at every call."""
        try:
            found = await self._workers.do(lambda: self._bucket.exists(**LIMITS))
        except (exceptions.GoogleAPIError, GoogleAuthError, RequestException, OSError) as e:
            # Rights to read and write objects do not include the right to ask for the bucket.
            log.warning("bucket not checked", bucket=self._bucket.name, error=str(e))
            return
        if not found:
            raise UserMistake(
                f"the bucket {self._bucket.name!r} does not exist",
                hint="create it, or check the bucket of the filestore",
            )

    def _blob(self, path: str) -> Any:
        return self._bucket.blob(path)

    async def _do(self, work: Callable[[], T], path: str) -> T:
        try:
            return await self._workers.do(work)
        except (exceptions.GoogleAPIError, GoogleAuthError, RequestException, OSError) as e:
            raise _failed(path, e) from e


def _failed(path: str, error: Exception) -> PipecdError:
    if isinstance(error, exceptions.NotFound):
        return missing(path)
    return unusable(path, error)


@asynccontextmanager
async def open_gcs(config: FilestoreConfig) -> AsyncIterator[GcsFiles]:
    """A bucket with the credentials of a file, or those of the machine."""
    client = await asyncio.to_thread(_client, config.credentials_file)
    workers = Workers("gcs", threads=THREADS)
    files = GcsFiles(client, config.bucket, workers)
    try:
        await files.check_bucket()
        yield files
    finally:
        await workers.close()
        client.close()


def _client(credentials_file: str) -> Any:
    kind: Any = storage.Client
    if credentials_file:
        try:
            return kind.from_service_account_json(credentials_file)
        except (OSError, ValueError, GoogleAuthError) as e:
            raise UserMistake(
                f"the credentials {credentials_file} cannot be used: {e}",
                hint="check credentialsFile of the filestore",
            ) from e
    try:
        return kind()
    except DefaultCredentialsError as e:
        raise UserMistake(
            "there are no credentials for Google Cloud Storage on this machine",
            hint="name a service-account file with credentialsFile, or run where there are some",
        ) from e
