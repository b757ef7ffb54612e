# SPDX-License-Identifier: Apache-2.0
"""Objects in a bucket of S3 or MinIO."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import boto3
import structlog
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pipecd.config.controlplane import FilestoreConfig
from pipecd.controlplane.filestore import (
    FileChanged,
    VersionedFile,
    bucket_unavailable,
    changed_file,
    check_path,
    check_prefix,
    content_type,
    missing_file,
)
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.program.threads import ThreadPool
from pipecd.wire.aws import AwsIdentity, create_session

T = TypeVar("T")

log = structlog.get_logger()

THREADS = 16
# A thread cannot be cancelled, so every call has a timeout.
CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, MAX_ATTEMPTS = 3, 10, 3
# The default region of MinIO; S3 does not accept it as a location constraint.
DEFAULT_REGION = "us-east-1"
MISSING_OBJECT = frozenset({"404", "NoSuchKey", "NotFound"})
# A concurrent conditional write of the same object also counts as a change.
CHANGED_OBJECT = frozenset({"412", "PreconditionFailed", "ConditionalRequestConflict"})
# The server does not support conditional writes.
UNCONDITIONAL = frozenset({"501", "NotImplemented"})
# Created to find out whether the server supports them.
CONDITION_CHECK = "pipecd/conditional-writes"
MISSING_BUCKET = frozenset({"404", "NoSuchBucket"})


class S3Files:
    """A bucket that all replicas share."""

    def __init__(self, client: Any, bucket: str, threads: ThreadPool) -> None:
        self._client = client
        self._bucket = bucket
        self._threads = threads

    async def get(self, path: str) -> bytes:
        check_path(path)

        def read() -> bytes:
            return self._client.get_object(Bucket=self._bucket, Key=path)["Body"].read()

        return await self._run(read, path)

    async def get_versioned(self, path: str) -> VersionedFile:
        check_path(path)

        def read() -> VersionedFile:
            response = self._client.get_object(Bucket=self._bucket, Key=path)
            return VersionedFile(response["Body"].read(), response["ETag"])

        return await self._run(read, path)

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        check_path(path)
        try:
            await self._put_if_unchanged(path, content, version)
        except PipecdError as e:
            if not _refuses_conditions(e):
                raise
            await self.put(path, content)

    async def _put_if_unchanged(self, path: str, content: bytes, version: str) -> None:
        condition = {"IfMatch": version} if version else {"IfNoneMatch": "*"}

        def write() -> None:
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=path,
                    Body=content,
                    ContentType=content_type(path),
                    **condition,
                )
            except ClientError as e:
                if _error_code(e) in CHANGED_OBJECT | MISSING_OBJECT:
                    raise changed_file(path) from e
                raise

        await self._run(write, path)

    async def put(self, path: str, content: bytes) -> None:
        check_path(path)

        def write() -> None:
            self._client.put_object(
                Bucket=self._bucket, Key=path, Body=content, ContentType=content_type(path)
            )

        await self._run(write, path)

    async def delete(self, path: str) -> None:
        check_path(path)
        await self._run(lambda: self._client.delete_object(Bucket=self._bucket, Key=path), path)

    async def list(self, prefix: str) -> tuple[str, ...]:
        check_prefix(prefix)

        def walk() -> tuple[str, ...]:
            paginator = self._client.get_paginator("list_objects_v2")
            pages = paginator.paginate(Bucket=self._bucket, Prefix=prefix)
            return tuple(sorted(o["Key"] for page in pages for o in page.get("Contents", ())))

        return await self._run(walk, prefix)

    async def ensure_bucket(self, region: str, *, create: bool) -> bool:
        """Checks at the start that the bucket exists, and creates it if `create` is set.

        Returns False if it cannot be checked.
        """
        try:
            await self._threads.run(lambda: self._client.head_bucket(Bucket=self._bucket))
        except ClientError as e:
            if _error_code(e) not in MISSING_BUCKET:
                # The permission to read and write objects does not include this one.
                log.warning(
                    "cannot check the bucket of the filestore", bucket=self._bucket, error=str(e)
                )
                return False
            if create:
                await self._create_bucket(region)
            else:
                raise UserMistake(
                    f"the bucket {self._bucket!r} does not exist",
                    hint="create it, or check the bucket and the endpoint of the filestore",
                ) from e
        except BotoCoreError as e:
            log.warning("filestore unavailable at startup", bucket=self._bucket, error=str(e))
            return False
        return True

    async def check_conditional_writes(self) -> None:
        """Logs a warning if the server ignores or refuses the conditions of writes."""
        try:
            await self._put_if_unchanged(CONDITION_CHECK, b"", "")
            try:
                await self._put_if_unchanged(CONDITION_CHECK, b"", "")
            finally:
                await self.delete(CONDITION_CHECK)
        except FileChanged:
            return
        except PipecdError as e:
            if not _refuses_conditions(e):
                log.debug("conditional writes not checked", bucket=self._bucket, error=str(e))
                return
        log.warning(
            "the server of the filestore has no conditional writes; lines of a stage log may be "
            "lost if two replicas write it at the same time",
            bucket=self._bucket,
        )

    async def _create_bucket(self, region: str) -> None:
        options: dict[str, Any] = {}
        if region != DEFAULT_REGION:
            options = {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            await self._threads.run(
                lambda: self._client.create_bucket(Bucket=self._bucket, **options)
            )
        except ClientError as e:
            # Another replica may have created it first.
            if _error_code(e) != "BucketAlreadyOwnedByYou":
                raise _bucket_error(self._bucket, e) from e

    async def _run(self, call: Callable[[], T], path: str) -> T:
        try:
            return await self._threads.run(call)
        except (ClientError, BotoCoreError, OSError) as e:
            raise _bucket_error(path, e) from e


def _refuses_conditions(error: PipecdError) -> bool:
    cause = error.__cause__
    return isinstance(cause, ClientError) and _error_code(cause) in UNCONDITIONAL


def _error_code(error: ClientError) -> str:
    return str(cast("Any", error.response).get("Error", {}).get("Code", ""))


def _bucket_error(path: str, error: Exception) -> PipecdError:
    if isinstance(error, ClientError) and _error_code(error) in MISSING_OBJECT:
        return missing_file(path)
    return bucket_unavailable(path, error)


@asynccontextmanager
async def open_s3(config: FilestoreConfig) -> AsyncIterator[S3Files]:
    """Opens an S3 bucket with the credentials of the configuration or of the environment."""
    session = _create_session(config)
    client = session.client(
        "s3", endpoint_url=config.endpoint or None, config=_client_config("auto")
    )
    async with _open_bucket(client, config, config.region) as files:
        yield files


@asynccontextmanager
async def open_minio(config: FilestoreConfig) -> AsyncIterator[S3Files]:
    """Opens a bucket of a MinIO server; only scheme, host and port of its endpoint are used."""
    address = config.endpoint if "://" in config.endpoint else f"http://{config.endpoint}"
    parts = urlsplit(address)
    client = cast("Any", boto3).client(
        "s3",
        endpoint_url=f"{parts.scheme}://{parts.netloc}",
        region_name=config.region or DEFAULT_REGION,
        aws_access_key_id=_read_key(config.access_key_file, "accessKeyFile"),
        aws_secret_access_key=_read_key(config.secret_key_file, "secretKeyFile"),
        config=_client_config("path"),
    )
    region = config.region or DEFAULT_REGION
    async with _open_bucket(client, config, region) as files:
        yield files


@asynccontextmanager
async def _open_bucket(client: Any, config: FilestoreConfig, region: str) -> AsyncIterator[S3Files]:
    threads = ThreadPool("s3", threads=THREADS)
    files = S3Files(client, config.bucket, threads)
    try:
        if await files.ensure_bucket(region, create=config.auto_create_bucket):
            await files.check_conditional_writes()
        yield files
    finally:
        await threads.close()
        client.close()


def _client_config(addressing: str) -> Config:
    return Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        retries={"total_max_attempts": MAX_ATTEMPTS, "mode": "standard"},
        max_pool_connections=THREADS,
        s3=cast("Any", {"addressing_style": addressing}),
        # Servers other than S3 do not support the checksums that boto3 sends by default.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _create_session(config: FilestoreConfig) -> Any:
    identity = AwsIdentity(
        region=config.region,
        profile=config.profile,
        credentials_file=config.credentials_file,
        role_arn=config.role_arn,
        token_file=config.token_file,
    )
    try:
        return create_session(identity)
    except BotoCoreError as e:
        raise UserMistake(
            f"the credentials of the filestore cannot be used: {e}",
            hint="check credentialsFile and profile",
        ) from e


def _read_key(path: str, option: str) -> str:
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as e:
        raise UserMistake(
            f"cannot read the file {path}: {e.strerror}", hint=f"check {option} of the filestore"
        ) from e
