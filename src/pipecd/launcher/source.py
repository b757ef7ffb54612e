# SPDX-License-Identifier: Apache-2.0
"""Where the configuration of the piped comes from."""

import base64
import binascii
from collections.abc import Callable
from pathlib import Path

from pipecd.model.errors import UserMistake

Load = Callable[[], bytes]


def from_file(path: str) -> Load:
    """Reads the file anew each time, so that a change is noticed."""

    def load() -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as e:
            raise UserMistake(
                f"cannot read the configuration {path}: {e.strerror}", hint="check --config-file"
            ) from e

    return load


def from_data(text: str) -> Load:
    """Takes the configuration from the command line, in base64."""
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise UserMistake("--config-data is not base64") from e
    return lambda: content
