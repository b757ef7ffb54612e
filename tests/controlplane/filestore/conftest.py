# SPDX-License-Identifier: Apache-2.0
"""An empty filestore of each type."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipecd.config.controlplane import FilestoreConfig, FilestoreSpec
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.filestore.open import open_filestore
from pipecd.model.ids import new_id
from servers.objects import S3, Gcs


@pytest.fixture
def aws(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """S3 configured by environment variables."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    return s3


@pytest.fixture(params=["local", "s3", "minio", "gcs"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def spec(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FilestoreSpec:
    match kind:
        case "local":
            config = FilestoreConfig(path=str(tmp_path / "files"))
            return FilestoreSpec(type="LOCAL", config=config)
        case "s3":
            request.getfixturevalue("aws")
            config = FilestoreConfig(
                bucket=f"b-{new_id()}", region="eu-west-1", auto_create_bucket=True
            )
            return FilestoreSpec(type="S3", config=config)
        case "minio":
            return minio_spec(request.getfixturevalue("s3"), tmp_path)
        case _:
            return gcs_spec(request.getfixturevalue("gcs"), monkeypatch)


def minio_spec(s3: S3, tmp_path: Path) -> FilestoreSpec:
    (tmp_path / "access").write_text("access\n")
    (tmp_path / "secret").write_text("secret\n\n")
    config = FilestoreConfig(
        endpoint=f"{s3.url}/ignored/path",
        bucket=f"b-{new_id()}",
        access_key_file=str(tmp_path / "access"),
        secret_key_file=str(tmp_path / "secret"),
        auto_create_bucket=True,
    )
    return FilestoreSpec(type="MINIO", config=config)


def gcs_spec(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> FilestoreSpec:
    bucket = f"b-{new_id()}"
    gcs.create(bucket)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    return FilestoreSpec(type="GCS", config=FilestoreConfig(bucket=bucket))


@pytest.fixture
async def files(spec: FilestoreSpec) -> AsyncIterator[Files]:
    async with open_filestore(spec) as files:
        yield files
