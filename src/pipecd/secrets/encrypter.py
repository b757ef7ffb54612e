# SPDX-License-Identifier: Apache-2.0
"""Encrypts secrets with the public key that a piped reports, in a form that it decrypts."""

import base64
from typing import NamedTuple

from pipecd.config.piped import KEY_PAIR
from pipecd.model.errors import Conflict, PipecdError, UserMistake
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding, decrypts_bound_secrets


class EncryptedSecret(NamedTuple):
    """An encrypted secret; without a binding all applications of the piped can decrypt it."""

    text: str
    binding: Binding | None


def has_encryption_key(piped: Piped) -> bool:
    """Whether secrets can be encrypted for the piped."""
    encryption = piped.secret_encryption
    return encryption.type == KEY_PAIR and bool(encryption.public_key)


def encrypt_for_piped(
    piped: Piped,
    plaintext: str,
    *,
    binding: Binding | None = None,
    base64_encoding: bool = False,
) -> EncryptedSecret:
    """Encrypts a secret, bound if the piped decrypts bound secrets.

    With `base64_encoding` the plaintext is encoded before it is encrypted.
    """
    if not has_encryption_key(piped):
        raise Conflict(
            f"piped {piped.name} has no public key to encrypt with",
            hint=f"add secretManagement of type {KEY_PAIR} to its configuration",
        )
    if base64_encoding:
        plaintext = base64.b64encode(plaintext.encode()).decode()
    used = binding if binding and decrypts_bound_secrets(piped.config) else None
    try:
        text = hybrid.encrypt(piped.secret_encryption.public_key.encode(), plaintext, binding=used)
    except (PipecdError, ValueError) as e:
        raise UserMistake("Invalid public key") from e
    return EncryptedSecret(text, used)
