# SPDX-License-Identifier: Apache-2.0
"""Filestores in buckets: credentials, content types, outages."""

from pathlib import Path
from typing import Any

import boto3
import pytest
from structlog.testing import capture_logs

from pipecd.config.controlplane import FilestoreConfig, FilestoreSpec
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.filestore import s3 as s3_module
from pipecd.controlplane.filestore.open import open_filestore
from pipecd.model.errors import Unavailable, UserMistake
from servers.objects import S3, Gcs
from servers.web import Answer, Request, WebServer


@pytest.fixture(params=["minio"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def put_and_get(spec: FilestoreSpec) -> None:
    async with open_filestore(spec) as files:
        await files.put("a", b"x")
        assert await files.get("a") == b"x"


def client(s3: S3, service: str = "s3") -> Any:
    return boto3.client(  # type: ignore[call-overload]
        service,
        endpoint_url=s3.url,
        region_name="us-east-1",
        aws_access_key_id="access",
        aws_secret_access_key="secret",
    )


async def test_objects_have_the_content_type_of_their_suffix(
    files: Files, spec: FilestoreSpec, s3: S3
) -> None:
    for path in ("a.json", "log/b.txt", "c"):
        await files.put(path, b"{}")
    found = [
        client(s3).head_object(Bucket=spec.config.bucket, Key=path)["ContentType"]
        for path in ("a.json", "log/b.txt", "c")
    ]
    assert found == ["application/json", "text/plain; charset=utf-8", "application/octet-stream"]


async def test_a_missing_bucket_is_created_if_configured_and_else_rejected(
    spec: FilestoreSpec,
) -> None:
    without = spec.config.model_copy(update={"auto_create_bucket": False})
    with pytest.raises(UserMistake, match=r"bucket 'b-.*' does not exist.*create it"):
        await put_and_get(FilestoreSpec(type="MINIO", config=without))
    await put_and_get(spec)
    await put_and_get(FilestoreSpec(type="MINIO", config=without))


async def test_a_missing_key_file_is_rejected(spec: FilestoreSpec) -> None:
    config = spec.config.model_copy(update={"secret_key_file": "/nowhere/key"})
    with pytest.raises(UserMistake, match=r"cannot read the file /nowhere/key.*secretKeyFile"):
        await put_and_get(FilestoreSpec(type="MINIO", config=config))


async def test_a_server_may_be_unavailable_at_startup(
    spec: FilestoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "MAX_ATTEMPTS", 1)
    config = spec.config.model_copy(update={"endpoint": "127.0.0.1:1"})
    async with open_filestore(FilestoreSpec(type="MINIO", config=config)) as files:
        for call in (files.get("a"), files.put("a", b""), files.delete("a"), files.list("")):
            with pytest.raises(Unavailable, match="check the bucket, the network"):
                await call


async def test_a_profile_of_a_credentials_file_is_used(aws: S3, tmp_path: Path) -> None:
    client(aws).create_bucket(Bucket="profiles")
    (tmp_path / "credentials").write_text(
        "[other]\naws_access_key_id = access\naws_secret_access_key = secret\n"
    )
    config = FilestoreConfig(
        bucket="profiles",
        region="us-east-1",
        credentials_file=str(tmp_path / "credentials"),
        profile="other",
    )
    await put_and_get(FilestoreSpec(type="S3", config=config))
    wrong = config.model_copy(update={"profile": "unknown"})
    with pytest.raises(UserMistake, match="credentials of the filestore cannot be used"):
        await put_and_get(FilestoreSpec(type="S3", config=wrong))


async def test_a_role_is_assumed_with_a_token_file(
    aws: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    client(aws).create_bucket(Bucket="roles")
    (tmp_path / "token").write_text("a token")
    config = FilestoreConfig(
        bucket="roles",
        region="us-east-1",
        roleARN="arn:aws:iam::123456789012:role/pipecd",  # type: ignore[call-arg]
        token_file=str(tmp_path / "token"),
    )
    await put_and_get(FilestoreSpec(type="S3", config=config))


async def test_without_credentials_the_error_names_them(
    aws: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    config = FilestoreConfig(bucket="b", region="us-east-1")
    with pytest.raises(Unavailable, match=r"[Cc]redentials"):
        await put_and_get(FilestoreSpec(type="S3", config=config))


@pytest.mark.parametrize("kind", ["gcs"])
async def test_gcs_objects_have_content_types_and_a_missing_bucket_is_rejected(
    files: Files, spec: FilestoreSpec, gcs: Gcs
) -> None:
    await files.put("log/x.json", b"{}")
    assert gcs.about(spec.config.bucket, "log/x.json")["contentType"] == "application/json"
    elsewhere = FilestoreSpec(type="GCS", config=FilestoreConfig(bucket="nowhere"))
    with pytest.raises(UserMistake, match="bucket 'nowhere' does not exist"):
        await put_and_get(elsewhere)


@pytest.mark.parametrize("kind", ["gcs"])
async def test_during_an_outage_of_gcs_calls_are_unavailable(
    files: Files, gcs: Gcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipecd.controlplane.filestore import gcs as gcs_module

    monkeypatch.setitem(gcs_module.TIMEOUTS, "retry", None)
    await files.put("a", b"")
    gcs.stop()
    try:
        for call in (files.get("a"), files.put("a", b""), files.delete("a"), files.list("")):
            with pytest.raises(Unavailable, match="check the bucket, the network"):
                await call
    finally:
        gcs.start()


async def test_an_invalid_credentials_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "credentials.json").write_text("{}")
    for path in (tmp_path / "credentials.json", tmp_path / "missing.json"):
        config = FilestoreConfig(bucket="b", credentials_file=str(path))
        with pytest.raises(UserMistake, match=r"cannot be used.*check credentialsFile"):
            await put_and_get(FilestoreSpec(type="GCS", config=config))


class UnconditionalBucket(WebServer):
    """A server that implements only the oldest part of S3's protocol."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        super().__init__()

    def answer(self, request: Request) -> Answer:
        if request.headers.get("If-Match") or request.headers.get("If-None-Match"):
            error = b"<Error><Code>NotImplemented</Code><Message>no conditions</Message></Error>"
            return Answer(501, error, {"Content-Type": "application/xml"})
        if request.method == "PUT":
            self.written.append(request.body)
        return Answer()


async def test_a_server_without_conditional_writes_is_written_without_conditions(
    spec: FilestoreSpec,
) -> None:
    server = UnconditionalBucket()
    try:
        config = spec.config.model_copy(update={"endpoint": server.address})
        async with open_filestore(FilestoreSpec(type="MINIO", config=config)) as files:
            await files.replace("a", b"new", version="")
            await files.replace("a", b"newer", version="some")
    finally:
        server.close()
    assert server.written == [b"new", b"newer"]


class CarelessBucket(WebServer):
    """A server that accepts conditions and ignores them."""

    def answer(self, request: Request) -> Answer:
        return Answer()


@pytest.mark.parametrize("server_type", [UnconditionalBucket, CarelessBucket])
async def test_a_server_without_conditional_writes_causes_a_warning(
    spec: FilestoreSpec, server_type: type[WebServer]
) -> None:
    server = server_type()
    try:
        config = spec.config.model_copy(update={"endpoint": server.address})
        with capture_logs() as logs:
            async with open_filestore(FilestoreSpec(type="MINIO", config=config)):
                pass
    finally:
        server.close()
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert "has no conditional writes" in warning["event"]


@pytest.mark.parametrize("kind", ["minio"])
async def test_a_server_with_conditional_writes_causes_none(spec: FilestoreSpec, kind: str) -> None:
    del kind
    with capture_logs() as logs:
        for _ in range(2):
            async with open_filestore(spec):
                pass
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []
