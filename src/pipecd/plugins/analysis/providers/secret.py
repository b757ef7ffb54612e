# SPDX-License-Identifier: Apache-2.0
"""Secrets of providers, from files and from texts in the configuration of piped."""

import base64
import binascii
from pathlib import Path

from pipecd.sdk import UserMistake


def read_secret(file: str, what: str) -> str:
    """The content of a file without the white space around it."""
    try:
        return Path(file).read_text().strip()
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not a text"
        raise UserMistake(f"{what} {file} cannot be read: {why}") from e


def secret(file: str, data: str, what: str) -> str:
    """A secret that is either in a file or, in base64, in the configuration itself."""
    if file:
        return read_secret(file, f"{what}File")
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        # The cause would carry the secret.
        raise UserMistake(f"{what}Data is not base64") from None
