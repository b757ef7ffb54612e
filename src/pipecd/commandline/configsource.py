# SPDX-License-Identifier: Apache-2.0
"""The places that the configuration of a piped may come from, for piped and its launcher alike.

Each function gives a reader, which blocks and may be called again to see what has changed.
"""

import base64
import binascii
from collections.abc import Callable
from pathlib import Path

from pipecd.model.errors import UserMistake
from pipecd.wire.cloud import open_aws, open_google

Read = Callable[[], bytes]


def from_file(path: str) -> Read:
    """The content of a file."""

    def read() -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as e:
            raise UserMistake(
                f"cannot read the configuration {path}: {e.strerror}", hint="check --config-file"
            ) from e

    return read


def from_data(text: str) -> Read:
    """The configuration itself, in base64."""
    content = _decoded(text, "--config-data")
    return lambda: content


def from_gcp_secret(name: str) -> Read:
    """A version of a secret of Google Cloud Secret Manager, the latest if it names none."""
    version = name if "/versions/" in name else f"{name}/versions/latest"
    about, ask = f"the secret {version} of Google Cloud", open_google("secretmanager")

    def read() -> bytes:
        answer = ask(f"v1/{version}:access", about=about)
        return base64.b64decode(answer["payload"]["data"])

    return read


def from_aws_secret(name: str) -> Read:
    """A secret of AWS Secrets Manager: text in base64, or bytes as they are."""
    about, ask = f"the secret {name} of AWS Secrets Manager", open_aws("secretsmanager")

    def read() -> bytes:
        answer = ask("get_secret_value", about=about, SecretId=name)
        if (text := answer.get("SecretString")) is not None:
            return _decoded(text, about)
        return answer["SecretBinary"]

    return read


def from_aws_ssm_parameter(name: str) -> Read:
    """A parameter of AWS Systems Manager, decrypted if need be: text in base64."""
    about, ask = f"the parameter {name} of AWS Systems Manager", open_aws("ssm")

    def read() -> bytes:
        answer = ask("get_parameter", about=about, Name=name, WithDecryption=True)
        return _decoded(answer["Parameter"]["Value"], about)

    return read


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as e:
        raise UserMistake(
            f"{what} is not base64", hint="write what `base64 -w0 piped.yaml` prints"
        ) from e
