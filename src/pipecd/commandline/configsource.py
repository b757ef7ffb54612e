# SPDX-License-Identifier: Apache-2.0
"""The sources of the configuration of piped and its launcher.

Each function returns a reader, which blocks and may be called again to read changes.
"""

import base64
from collections.abc import Callable
from pathlib import Path

from pipecd.model.errors import UserMistake
from pipecd.wire.cloud import open_aws, open_google

Read = Callable[[], bytes]


def from_file(path: str) -> Read:
    """Reads a file."""

    def read() -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as e:
            raise UserMistake(
                f"cannot read the configuration {path}: {e.strerror}", hint="check --config-file"
            ) from e

    return read


def from_data(text: str) -> Read:
    """Decodes the configuration from base64."""
    content = _decode(text, "--config-data")
    return lambda: content


def from_gcp_secret(name: str) -> Read:
    """Reads a version of a Google Cloud Secret Manager secret, by default the latest."""
    version = name if "/versions/" in name else f"{name}/versions/latest"
    about, call = f"the secret {version} of Google Cloud", open_google("secretmanager")

    def read() -> bytes:
        response = call(f"v1/{version}:access", about=about)
        return base64.b64decode(response["payload"]["data"])

    return read


def from_aws_secret(name: str) -> Read:
    """Reads an AWS Secrets Manager secret: text in base64, or plain bytes."""
    about, call = f"the secret {name} of AWS Secrets Manager", open_aws("secretsmanager")

    def read() -> bytes:
        response = call("get_secret_value", about=about, SecretId=name)
        if (text := response.get("SecretString")) is not None:
            return _decode(text, about)
        return response["SecretBinary"]

    return read


def from_aws_ssm_parameter(name: str) -> Read:
    """Reads an AWS Systems Manager parameter, decrypted if necessary: text in base64."""
    about, call = f"the parameter {name} of AWS Systems Manager", open_aws("ssm")

    def read() -> bytes:
        response = call("get_parameter", about=about, Name=name, WithDecryption=True)
        return _decode(response["Parameter"]["Value"], about)

    return read


def _decode(text: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as e:
        raise UserMistake(
            f"{what} is not base64", hint="write what `base64 -w0 piped.yaml` prints"
        ) from e
