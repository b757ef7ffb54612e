# SPDX-License-Identifier: Apache-2.0
"""Secrets in Git: encrypted with the public key of a piped, decrypted with its private key.

The text is base64 of: two bytes with the length of what follows, a fresh AES key under RSA-OAEP,
and the secret under AES-256-GCM with a zero nonce (the key is used once). A bound secret has a
prefix before the base64, and its `Binding` as associated data of AES-GCM: nobody can turn it into
an unbound secret or bind it to something else without decrypting it.
"""

import base64
import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from pipecd.model.errors import UserMistake
from pipecd.secrets.binding import Binding

# No base64 text begins with it.
_BOUND_PREFIX = "bound.v1."
_NONCE = bytes(12)
_OAEP = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)


def encrypt(public_pem: bytes, text: str, *, binding: Binding | None = None) -> str:
    """Encrypts a text, bound or as upstream does; every call returns another ciphertext."""
    public = _public_key(public_pem)
    key = os.urandom(32)
    sealed_key = public.encrypt(key, _OAEP)
    associated = binding.associated_data() if binding else None
    sealed = AESGCM(key).encrypt(_NONCE, text.encode(), associated)
    encoded = base64.b64encode(len(sealed_key).to_bytes(2) + sealed_key + sealed).decode()
    return f"{_BOUND_PREFIX}{encoded}" if binding else encoded


def decrypt(private_pem: bytes, text: str, *, binding: Binding | None = None) -> str:
    """Decrypts a secret that was encrypted for this key, and for `binding` if it is bound."""
    sealed = read(text)
    return sealed.opened(PrivateKey(private_pem).unwrap(sealed.key), binding)


class WrongKey(UserMistake):
    """A secret was encrypted for another key."""

    def __init__(self, which: str = "another key") -> None:
        error = _unreadable(f"it was encrypted for {which}, or has been altered")
        super().__init__(error.message, hint=error.hint)


@dataclass(frozen=True)
class Sealed:
    """An encrypted secret: its encrypted key, and the content encrypted with that key."""

    key: bytes
    content: bytes
    is_bound: bool = False

    def opened(self, key: bytes, binding: Binding | None) -> str:
        """Decrypts the content with the decrypted key; a bound secret only with its binding."""
        if self.is_bound and binding is None:
            raise _unreadable("it is bound to the file of an application")
        associated = binding.associated_data() if binding and self.is_bound else None
        try:
            return AESGCM(key).decrypt(_NONCE, self.content, associated).decode()
        except (ValueError, InvalidTag) as e:
            if self.is_bound:
                reason = f"it was encrypted for another file than {binding}, or has been altered"
                raise _unreadable(reason) from e
            raise _unreadable("it has been altered") from e


def read(text: str) -> Sealed:
    """Parses an encrypted secret."""
    encoded = text.replace("\r", "").replace("\n", "")
    is_bound = encoded.startswith(_BOUND_PREFIX)
    try:
        sealed = base64.b64decode(encoded.removeprefix(_BOUND_PREFIX), validate=True)
    except ValueError as e:
        raise _unreadable("it is not base64") from e
    length = int.from_bytes(sealed[:2])
    if len(sealed) < 2 or len(sealed) < 2 + length:
        raise _unreadable("data is too short")
    return Sealed(sealed[2 : 2 + length], sealed[2 + length :], is_bound)


class PrivateKey:
    """The private key of a key pair."""

    def __init__(self, pem: bytes) -> None:
        _require_label(pem, "PRIVATE KEY")
        try:
            key = load_pem_private_key(pem.strip(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as e:
            raise UserMistake("the private key cannot be read", hint=_HINT) from e
        if not isinstance(key, rsa.RSAPrivateKey):
            raise UserMistake("the private key is not an RSA key", hint=_HINT)
        self._key = key

    def matches(self, public_pem: bytes) -> bool:
        """Whether the public key belongs to this private key."""
        return self._key.public_key() == _public_key(public_pem)

    def unwrap(self, sealed_key: bytes) -> bytes:
        """Decrypts the key of a secret."""
        try:
            return self._key.decrypt(sealed_key, _OAEP)
        except ValueError as e:
            raise WrongKey from e


def _public_key(pem: bytes) -> rsa.RSAPublicKey:
    _require_label(pem, "PUBLIC KEY")
    try:
        key = load_pem_public_key(pem.strip())
    except (ValueError, UnsupportedAlgorithm) as e:
        raise UserMistake("the public key cannot be read", hint=_HINT) from e
    if not isinstance(key, rsa.RSAPublicKey):
        raise UserMistake("the public key is not an RSA key", hint=_HINT)
    return key


_HINT = (
    "create the pair with `openssl genrsa -out private 2048`, `openssl pkcs8 -topk8 -nocrypt -in "
    "private -out key.pem` and `openssl rsa -in key.pem -pubout`"
)


def _require_label(pem: bytes, label: str) -> None:
    """Rejects other formats than PKIX and PKCS#8, which upstream does not read."""
    if not pem.strip().startswith(f"-----BEGIN {label}-----".encode()):
        what = label.lower()
        raise UserMistake(f"the {what} is not a PEM block named {label}", hint=_HINT)


def _unreadable(reason: str) -> UserMistake:
    return UserMistake(
        f"the encrypted secret cannot be read: {reason}",
        hint="encrypt the value again for this piped and application, with `pipectl encrypt`",
    )
