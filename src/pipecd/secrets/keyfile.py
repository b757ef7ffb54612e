# SPDX-License-Identifier: Apache-2.0
"""Encrypts secrets in the control plane's database with the key of `--encryption-key-file`."""

import base64
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pipecd.model.errors import UserMistake

KEY_BYTES = 32
_NONCE, _TAG = 12, 16
# Marks an encrypted value in a field that upstream stores in plain text.
_SEALED = "pipecd-sealed-v1:"


class KeyFile:
    """The content of the key file: AES-256-GCM under its first 32 bytes."""

    def __init__(self, content: bytes) -> None:
        if len(content) < KEY_BYTES:
            raise UserMistake(
                f"the encryption key file has {len(content)} bytes and needs at least {KEY_BYTES}",
                hint="create one with `openssl rand -hex 32`",
            )
        self._cipher = AESGCM(content[:KEY_BYTES])

    def encrypt(self, text: str) -> str:
        nonce = os.urandom(_NONCE)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, text.encode(), None)).decode()

    def decrypt(self, text: str) -> str:
        try:
            sealed = base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
        except ValueError as e:
            raise _unreadable("it is not base64") from e
        if len(sealed) < _NONCE + _TAG:
            raise _unreadable("it is too short")
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], None).decode()
        except (ValueError, InvalidTag) as e:
            raise _unreadable("it was encrypted with another key or has been altered") from e

    def seal(self, text: str) -> str:
        """Encrypts a value of a field that may also hold plain text."""
        return _SEALED + self.encrypt(text)

    def unseal(self, text: str) -> str:
        """The plain text of a sealed value; one that is not sealed is returned as it is."""
        return self.decrypt(text.removeprefix(_SEALED)) if is_sealed(text) else text


def is_sealed(text: str) -> bool:
    return text.startswith(_SEALED)


def _unreadable(reason: str) -> UserMistake:
    return UserMistake(
        f"an encrypted value of the database cannot be read: {reason}",
        hint="start with the --encryption-key-file that was used when it was saved",
    )
