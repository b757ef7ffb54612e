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
from pipecd.controlplane.filestore import (
    VersionedFile,
    bucket_unavailable,
    changed_file,
    check_path,
    check_prefix,
    content_type,
    missing_file,
)
from pipecd.model.errors import UserMistake
from pipecd.program.threads import ThreadPool

T = TypeVar("T")

log = structlog.get_logger()

# The size of the connection pool of the driver.
THREADS = 10
# A thread cannot be cancelled, so every call has a timeout.
TIMEOUTS: dict[str, Any] = {
    "timeout": (3, 10),
    "retry": cast("Any", DEFAULT_RETRY).with_timeout(20.0),
}


class GcsFiles:
    """A bucket that all replicas share."""

    def __init__(self, client: Any, bucket: str, threads: ThreadPool) -> None:
        self._client = client
        self._bucket = client.bucket(bucket)
        self._threads = threads

    async def get(self, path: str) -> bytes:
        check_path(path)
        blob = self._bucket.blob(path)
        return await self._run(lambda: blob.download_as_bytes(**TIMEOUTS), path)

    async def get_versioned(self, path: str) -> VersionedFile:
        check_path(path)

        def read() -> VersionedFile:
            blob = self._bucket.blob(path)
            # The download sets the generation of the blob.
            content = blob.download_as_bytes(**TIMEOUTS)
            return VersionedFile(content, str(blob.generation))

        return await self._run(read, path)

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        check_path(path)

        def write() -> None:
            try:
                self._bucket.blob(path).upload_from_string(
                    content,
                    content_type=content_type(path),
                    if_generation_match=int(version or 0),
                    **TIMEOUTS,
                )
            except exceptions.PreconditionFailed as e:
                raise changed_file(path) from e

        await self._run(write, path)

    async def put(self, path: str, content: bytes) -> None:
        check_path(path)

        def write() -> None:
            blob = self._bucket.blob(path)
            blob.upload_from_string(content, content_type=content_type(path), **TIMEOUTS)

        await self._run(write, path)

    async def delete(self, path: str) -> None:
        check_path(path)

        def remove() -> None:
            try:
                self._bucket.blob(path).delete(**TIMEOUTS)
            except exceptions.NotFound as e:
                # A missing object is no error, but a missing bucket is.
                if "bucket" in str(e).lower() and not self._bucket.exists(**TIMEOUTS):
                    raise

        await self._run(remove, path)

    async def list(self, prefix: str) -> tuple[str, ...]:
        check_prefix(prefix)

        def walk() -> tuple[str, ...]:
            blobs = self._client.list_blobs(self._bucket, prefix=prefix, **TIMEOUTS)
            return tuple(sorted(blob.name for blob in blobs))

        return await self._run(walk, prefix)

    async def check_bucket(self) -> None:
        """Checks at the start that the bucket exists."""
        try:
            exists = await self._threads.run(lambda: self._bucket.exists(**TIMEOUTS))
        except (exceptions.GoogleAPIError, GoogleAuthError, RequestException, OSError) as e:
            # Permission to read and write objects does not include permission to see the bucket.
            log.warning(
                "cannot check the bucket of the filestore", bucket=self._bucket.name, error=str(e)
            )
            return
        if not exists:
            raise UserMistake(
                f"the bucket {self._bucket.name!r} does not exist",
                hint="create it, or check the bucket of the filestore",
            )

    async def _run(self, call: Callable[[], T], path: str) -> T:
        try:
            return await self._threads.run(call)
        except exceptions.NotFound as e:
            raise missing_file(path) from e
        except (exceptions.GoogleAPIError, GoogleAuthError, RequestException, OSError) as e:
            raise bucket_unavailable(path, e) from e


@asynccontextmanager
async def open_gcs(config: FilestoreConfig) -> AsyncIterator[GcsFiles]:
    """Opens a bucket with the credentials of a file, or those of the environment."""
    client = await asyncio.to_thread(_create_client, config.credentials_file)
    threads = ThreadPool("gcs", threads=THREADS)
    files = GcsFiles(client, config.bucket, threads)
    try:
        await files.check_bucket()
        yield files
    finally:
        await threads.close()
        client.close()


def _create_client(credentials_file: str) -> Any:
    client_class: Any = storage.Client
    if credentials_file:
        try:
            return client_class.from_service_account_json(credentials_file)
        except (OSError, ValueError, GoogleAuthError) as e:
            raise UserMistake(
                f"the credentials {credentials_file} cannot be used: {e}",
                hint="check credentialsFile of the filestore",
            ) from e
    try:
        return client_class()
    except DefaultCredentialsError as e:
        raise UserMistake(
            "there are no credentials for Google Cloud Storage on this machine",
            hint="set credentialsFile to a service-account file, or use workload identity",
        ) from e
