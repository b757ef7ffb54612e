# SPDX-License-Identifier: Apache-2.0
"""Objects in a bucket of S3 or MinIO."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import boto3
import botocore.session
import structlog
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleWithWebIdentityCredentialFetcher,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import BotoCoreError, ClientError
from botocore.utils import FileWebIdentityTokenLoader

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

THREADS = 16
# A thread cannot be told to stop, so that every call must end by itself.
CONNECT_SECONDS, ANSWER_SECONDS, ATTEMPTS = 3, 10, 3
# Where MinIO is, unless it was told otherwise; the one place that is no constraint for S3.
DEFAULT_REGION = "us-east-1"
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
NO_BUCKET = frozenset({"404", "NoSuchBucket"})


class S3Files:
    """A bucket that all replicas share."""

    def __init__(self, client: Any, bucket: str, workers: Workers) -> None:
        self._client = client
        self._bucket = bucket
        self._workers = workers

    async def get(self, path: str) -> bytes:
        check_path(path)

        def read() -> bytes:
            return self._client.get_object(Bucket=self._bucket, Key=path)["Body"].read()

        return await self._do(read, path)

    async def put(self, path: str, content: bytes) -> None:
        check_path(path)
        place = {"Bucket": self._bucket, "Key": path, "ContentType": content_type(path)}
        await self._do(lambda: self._client.put_object(Body=content, **place), path)

    async def delete(self, path: str) -> None:
        check_path(path)
        await self._do(lambda: self._client.delete_object(Bucket=self._bucket, Key=path), path)

    async def list(self, prefix: str) -> tuple[str, ...]:
        check_prefix(prefix)

        def walk() -> tuple[str, ...]:
            pages = self._client.get_paginator("list_objects_v2")
            found = pages.paginate(Bucket=self._bucket, Prefix=prefix)
            return tuple(sorted(o["Key"] for page in found for o in page.get("Contents", ())))

        return await self._do(walk, prefix)

    async def ensure_bucket(self, region: str, *, create: bool) -> None:
        """Tells at the start what would fail at every call."""
        try:
            await self._workers.do(lambda: self._client.head_bucket(Bucket=self._bucket))
        except ClientError as e:
            if _code(e) not in NO_BUCKET:
                # Rights to read and write objects do not include the right to ask for the bucket.
                log.warning("bucket not checked", bucket=self._bucket, error=str(e))
            elif create:
                await self._create(region)
            else:
                raise UserMistake(
                    f"the bucket {self._bucket!r} does not exist",
                    hint="create it, or check the bucket and the endpoint of the filestore",
                ) from e
        except BotoCoreError as e:
            log.warning("filestore not reachable yet", bucket=self._bucket, error=str(e))

    async def _create(self, region: str) -> None:
        place: dict[str, Any] = {}
        if region != DEFAULT_REGION:
            place = {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            await self._workers.do(lambda: self._client.create_bucket(Bucket=self._bucket, **place))
        except ClientError as e:
            # Another replica may have been faster.
            if _code(e) != "BucketAlreadyOwnedByYou":
                raise _failed(self._bucket, e) from e

    async def _do(self, work: Callable[[], T], path: str) -> T:
        try:
            return await self._workers.do(work)
        except (ClientError, BotoCoreError, OSError) as e:
            raise _failed(path, e) from e


def _code(error: ClientError) -> str:
    return str(cast("Any", error.response).get("Error", {}).get("Code", ""))


def _failed(path: str, error: Exception) -> PipecdError:
    if isinstance(error, ClientError) and _code(error) in MISSING:
        return missing(path)
    return unusable(path, error)


@asynccontextmanager
async def open_s3(config: FilestoreConfig) -> AsyncIterator[S3Files]:
    """A bucket of S3 in a region, with the credentials of the configuration or of the machine."""
    session = _session(config)
    client = session.client("s3", endpoint_url=config.endpoint or None, config=_settings("auto"))
    async with _opened(client, config, config.region) as files:
        yield files


@asynccontextmanager
async def open_minio(config: FilestoreConfig) -> AsyncIterator[S3Files]:
    """A bucket of a MinIO server; of its address only scheme, host and port count."""
    address = config.endpoint if "://" in config.endpoint else f"http://{config.endpoint}"
    parts = urlsplit(address)
    client = cast("Any", boto3).client(
        "s3",
        endpoint_url=f"{parts.scheme}://{parts.netloc}",
        region_name=config.region or DEFAULT_REGION,
        aws_access_key_id=_key(config.access_key_file, "accessKeyFile"),
        aws_secret_access_key=_key(config.secret_key_file, "secretKeyFile"),
        config=_settings("path"),
    )
    region = config.region or DEFAULT_REGION
    async with _opened(client, config, region) as files:
        yield files


@asynccontextmanager
async def _opened(client: Any, config: FilestoreConfig, region: str) -> AsyncIterator[S3Files]:
    workers = Workers("s3", threads=THREADS)
    files = S3Files(client, config.bucket, workers)
    try:
        await files.ensure_bucket(region, create=config.auto_create_bucket)
        yield files
    finally:
        await workers.close()
        client.close()


def _settings(addressing: str) -> Config:
    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        max_pool_connections=THREADS,
        s3=cast("Any", {"addressing_style": addressing}),
        # Servers other than S3 do not know the checksums that are asked for by default.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _session(config: FilestoreConfig) -> Any:
    core: Any = cast("Any", botocore.session).Session()
    if config.credentials_file:
        core.set_config_variable("credentials_file", config.credentials_file)
    if config.profile:
        core.set_config_variable("profile", config.profile)
    if config.role_arn and config.token_file:
        fetcher = cast("Any", AssumeRoleWithWebIdentityCredentialFetcher)(
            client_creator=partial(core.create_client, region_name=config.region),
            web_identity_token_loader=FileWebIdentityTokenLoader(config.token_file),
            role_arn=config.role_arn,
        )
        core._credentials = cast("Any", DeferredRefreshableCredentials)(
            method="assume-role-with-web-identity", refresh_using=fetcher.fetch_credentials
        )
    try:
        return boto3.Session(botocore_session=core, region_name=config.region)
    except BotoCoreError as e:
        raise UserMistake(
            f"the credentials of the filestore cannot be used: {e}",
            hint="check credentialsFile and profile",
        ) from e


def _key(path: str, key: str) -> str:
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as e:
        raise UserMistake(
            f"cannot read the file {path}: {e.strerror}", hint=f"check {key} of the filestore"
        ) from e
