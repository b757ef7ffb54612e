# SPDX-License-Identifier: Apache-2.0
"""Secrets in Git: encrypted for one piped with its public key, readable with its private key only.

The text is base64 of: two bytes with the length of what follows, a fresh AES key under RSA-OAEP,
and the secret under AES-256-GCM with a zero nonce (the key is used once).
"""

import base64
import binascii
import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from pipecd.model.errors import UserMistake

_NONCE = bytes(12)
_OAEP = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)


def encrypt(public_pem: bytes, text: str) -> str:
    """Encrypts for the owner of the private key; every call gives another text."""
    public = _public_key(public_pem)
    key = os.urandom(32)
    sealed_key = public.encrypt(key, _OAEP)
    sealed = AESGCM(key).encrypt(_NONCE, text.encode(), None)
    return base64.b64encode(len(sealed_key).to_bytes(2) + sealed_key + sealed).decode()


def decrypt(private_pem: bytes, text: str) -> str:
    """Reads a secret that was encrypted for this key."""
    sealed = read(text)
    return sealed.opened(PrivateKey(private_pem).unwrap(sealed.key))


class WrongKey(UserMistake):
    """A secret was not encrypted for the keys at hand."""

    def __init__(self, which: str = "another key") -> None:
        told = _unreadable(f"it was encrypted for {which}, or has been altered")
        super().__init__(told.message, hint=told.hint)


@dataclass(frozen=True)
class Sealed:
    """An encrypted secret in its two parts: the key for it, which is encrypted too, and itself."""

    key: bytes
    content: bytes

    def opened(self, key: bytes) -> str:
        """The secret, with the key decrypted."""
        try:
            return AESGCM(key).decrypt(_NONCE, self.content, None).decode()
        except (ValueError, InvalidTag) as e:
            raise _unreadable("it has been altered") from e


def read(text: str) -> Sealed:
    """Takes an encrypted secret apart."""
    sealed = _decoded(text)
    length = int.from_bytes(sealed[:2])
    if len(sealed) < 2 or len(sealed) < 2 + length:
        raise _unreadable("data is too short")
    return Sealed(sealed[2 : 2 + length], sealed[2 + length :])


class PrivateKey:
    """The private half of a key pair."""

    def __init__(self, pem: bytes) -> None:
        self._key = _private_key(pem)

    def is_half_of(self, public_pem: bytes) -> bool:
        """Whether the public key is the other half."""
        return self._key.public_key() == _public_key(public_pem)

    def unwrap(self, sealed_key: bytes) -> bytes:
        """The key of a secret that was encrypted for this pair."""
        try:
            return self._key.decrypt(sealed_key, _OAEP)
        except ValueError as e:
            raise WrongKey from e


def _public_key(pem: bytes) -> rsa.RSAPublicKey:
    _require_label(pem, "PUBLIC KEY")
    try:
        key = load_pem_public_key(pem.strip())
    except (ValueError, UnsupportedAlgorithm) as e:
        raise UserMistake("the public key cannot be read", hint=_HOW) from e
    if not isinstance(key, rsa.RSAPublicKey):
        raise UserMistake("the public key is not an RSA key", hint=_HOW)
    return key


def _private_key(pem: bytes) -> rsa.RSAPrivateKey:
    _require_label(pem, "PRIVATE KEY")
    try:
        key = load_pem_private_key(pem.strip(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise UserMistake("the private key cannot be read", hint=_HOW) from e
    if not isinstance(key, rsa.RSAPrivateKey):
        raise UserMistake("the private key is not an RSA key", hint=_HOW)
    return key


_HOW = (
    "make the pair with `openssl genrsa -out private 2048`, `openssl pkcs8 -topk8 -nocrypt -in "
    "private -out key.pem` and `openssl rsa -in key.pem -pubout`"
)


def _require_label(pem: bytes, label: str) -> None:
    """Upstream reads PKIX and PKCS#8 only, so a key that it would refuse is refused here too."""
    if not pem.strip().startswith(f"-----BEGIN {label}-----".encode()):
        what = label.lower()
        raise UserMistake(f"the {what} is not a PEM block named {label}", hint=_HOW)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except (ValueError, binascii.Error) as e:
        raise _unreadable("it is not base64") from e


def _unreadable(why: str) -> UserMistake:
    return UserMistake(
        f"the encrypted secret cannot be read: {why}",
        hint="encrypt the value again for this piped, with `pipectl encrypt`",
    )
