# SPDX-License-Identifier: Apache-2.0
"""The one place where the kind of filestore is chosen."""

import warnings
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from pipecd.config.controlplane import FilestoreConfig, FilestoreSpec
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.errors import NoDriver, UserMistake


def open_filestore(spec: FilestoreSpec) -> AbstractAsyncContextManager[Files]:
    """The filestore of the configuration; closed at the end of the context."""
    match spec.type:
        case "LOCAL":
            return _open_local(spec.config)
        case "S3" | "MINIO":
            return _open_bucket(spec)
        case "GCS":
            return _open_gcs(spec.config)
        case _:
            raise UserMistake(
                f"filestore type {spec.type!r} is unknown", hint="use LOCAL, S3, MINIO or GCS"
            )


@asynccontextmanager
async def _open_local(config: FilestoreConfig) -> AsyncIterator[Files]:
    yield await LocalFiles.open(Path(config.path))


def _open_bucket(spec: FilestoreSpec) -> AbstractAsyncContextManager[Files]:
    # The drivers of clouds are large, and installed only by those who use them.
    try:
        from pipecd.controlplane.filestore.s3 import open_minio, open_s3  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("S3 and MinIO", extra="s3") from e
    return open_s3(spec.config) if spec.type == "S3" else open_minio(spec.config)


def _open_gcs(config: FilestoreConfig) -> AbstractAsyncContextManager[Files]:
    try:
        with warnings.catch_warnings():
            # The driver asks for a package that would only help it with gRPC.
            warnings.simplefilter("ignore", ImportWarning)
            from pipecd.controlplane.filestore.gcs import open_gcs  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("Google Cloud Storage", extra="gcp") from e
    return open_gcs(config)
