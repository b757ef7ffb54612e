# SPDX-License-Identifier: Apache-2.0
"""The configuration of a piped is read from files, secrets of clouds and flags."""

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config

from pipecd.commandline import configsource
from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable, UserMistake
from servers.google import GoogleCloud
from servers.objects import S3
from servers.web import Answer, Request, WebServer, in_json

CONFIG = b"kind: Piped\nspec: {projectID: sh\xc3\xb6p}\n"
ENCODED = base64.b64encode(CONFIG).decode()
SECRET = "projects/shop/secrets/piped"


def client(service: str) -> Any:
    return boto3.client(service, config=Config(retries={"max_attempts": 0}))


def new_secret(**content: Any) -> str:
    name = f"piped-{uuid4().hex}"
    client("secretsmanager").create_secret(Name=name, **content)
    return name


def test_a_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "piped.yaml"
    read = configsource.from_file(str(file))
    with pytest.raises(UserMistake, match=r"cannot read the configuration .*piped.yaml: No such"):
        read()
    for content in (b"a", b"b"):
        file.write_bytes(content)
        assert read() == content


def test_data_is_base64() -> None:
    assert configsource.from_data(ENCODED)() == CONFIG
    with pytest.raises(UserMistake, match="--config-data is not base64; write what `base64 -w0"):
        configsource.from_data("kind: Piped")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param(f"{SECRET}/versions/3", b"version 3", id="a version"),
        pytest.param(SECRET, b"latest", id="the latest version if none is named"),
    ],
)
def test_a_secret_of_google_cloud(google: GoogleCloud, name: str, content: bytes) -> None:
    google.secrets[f"{SECRET}/versions/3"] = b"version 3"
    google.secrets[f"{SECRET}/versions/latest"] = b"latest"
    assert configsource.from_gcp_secret(name)() == content


def test_a_secret_of_google_cloud_is_read_anew(google: GoogleCloud) -> None:
    read = configsource.from_gcp_secret(SECRET)
    for content in (b"a", b"b"):
        google.secrets[f"{SECRET}/versions/latest"] = content
        assert read() == content


@pytest.mark.parametrize(
    ("broken", "kind", "error_text"),
    [
        pytest.param(None, NotFound, f"the secret {SECRET}/versions/latest of Google Cloud does not exist; check its full", id="no such secret"),
        pytest.param((403, {"error": {"message": "no versions.access"}}), Denied, "denies access to the secret .*: no versions.access; check the service account", id="no permission"),
        pytest.param((500, {}), Unavailable, "Google Cloud is unavailable for the secret", id="Google is unavailable"),
    ],
)  # fmt: skip
def test_an_error_of_google_cloud_is_reported(
    google: GoogleCloud, broken: Any, kind: type[PipecdError], error_text: str
) -> None:
    google.broken = broken
    with pytest.raises(kind, match=error_text):
        configsource.from_gcp_secret(SECRET)()


def test_without_credentials_for_google_cloud_the_error_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere"))
    with pytest.raises(UserMistake, match=r"no credentials for Google Cloud: .*; give the machine"):
        configsource.from_gcp_secret(SECRET)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"SecretString": ENCODED}, id="base64"),
        pytest.param({"SecretString": f"{ENCODED[:20]}\n{ENCODED[20:]}\n"}, id="base64 in lines"),
        pytest.param({"SecretBinary": CONFIG}, id="bytes, of which upstream dies"),
    ],
)
def test_a_secret_of_aws(aws: S3, content: Any) -> None:
    assert configsource.from_aws_secret(new_secret(**content))() == CONFIG


@pytest.mark.parametrize("kind", ["String", "SecureString"])
def test_a_parameter_of_aws(aws: S3, kind: str) -> None:
    name = f"/piped/{uuid4().hex}"
    client("ssm").put_parameter(Name=name, Type=kind, Value=ENCODED)
    assert configsource.from_aws_ssm_parameter(name)() == CONFIG


def test_the_region_is_found_where_upstream_finds_it(
    aws: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_secret(SecretString=ENCODED)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert configsource.from_aws_secret(name)() == CONFIG


def test_an_error_of_aws_is_reported(aws: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="the secret none of AWS Secrets Manager does not exist"):
        configsource.from_aws_secret("none")()
    with pytest.raises(NotFound, match="the parameter none of AWS Systems Manager does not exist"):
        configsource.from_aws_ssm_parameter("none")()
    with pytest.raises(UserMistake, match=r"the secret .* is not base64"):
        configsource.from_aws_secret(new_secret(SecretString="kind: Piped"))()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="AWS did not respond to the request for the parameter a"):
        configsource.from_aws_ssm_parameter("a")()


class Refusing(WebServer):
    """AWS for a caller without permissions."""

    def answer(self, request: Request) -> Answer:
        return in_json({"__type": "AccessDeniedException", "message": "no GetSecretValue"}, 400)


@pytest.fixture
def refusing() -> Iterator[str]:
    with closing(Refusing()) as server:
        yield server.address


def test_a_missing_permission_of_aws_is_reported(
    aws: S3, monkeypatch: pytest.MonkeyPatch, refusing: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", refusing)
    error_text = r"AWS denies access to the secret a .*: no GetSecretValue; check the credentials"
    with pytest.raises(Denied, match=error_text):
        configsource.from_aws_secret("a")()
