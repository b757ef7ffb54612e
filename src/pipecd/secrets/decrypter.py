# SPDX-License-Identifier: Apache-2.0
"""Decrypts the secrets in application files with whichever of a piped's keys fits."""

import threading
from collections.abc import Sequence
from typing import Protocol

from pipecd.cache import LruCache
from pipecd.config.piped import (
    AWS_KMS,
    KEY_PAIR,
    PreviousKeySpec,
    SecretManagementConfig,
    SecretManagementSpec,
    key_pair,
    previous_key,
)
from pipecd.model.errors import UserMistake
from pipecd.secrets import hybrid
from pipecd.secrets.kms import AwsKey, GoogleKey
from pipecd.secrets.masking import KnownSecrets
from pipecd.wire.cloud import open_aws, open_google

# Working copies are made all the time and key services count their calls.
_REMEMBERED = 10_000


class Key(Protocol):
    """Something that opens what was encrypted for its public half; may block."""

    def unwrap(self, sealed_key: bytes) -> bytes:
        """The key of a secret; `hybrid.WrongKey` if it was encrypted for another."""
        ...


class Decrypter:
    """The keys of a piped: the present one, whose public half people encrypt with, and older ones.

    It blocks, and may be used by several threads.
    """

    def __init__(self, public_key: bytes, keys: Sequence[Key]) -> None:
        self.public_key = public_key
        self.known = KnownSecrets()
        """What was decrypted so far."""
        self._keys = tuple(keys)
        self._opened = LruCache[bytes, bytes](_REMEMBERED)
        self._lock = threading.Lock()

    def decrypt(self, text: str) -> str:
        """The secret in an encrypted text."""
        sealed = hybrid.read(text)
        secret = sealed.opened(self._unwrap(sealed.key))
        self.known.add([secret])
        return secret

    def _unwrap(self, sealed_key: bytes) -> bytes:
        with self._lock:
            cached = self._opened.get(sealed_key)
        if cached is not None:
            return cached
        for key in self._keys:
            try:
                opened = key.unwrap(sealed_key)
            except hybrid.WrongKey:
                continue
            with self._lock:
                self._opened.put(sealed_key, opened)
            return opened
        if len(self._keys) > 1:
            raise hybrid.WrongKey(f"none of the {len(self._keys)} keys of this piped")
        raise hybrid.WrongKey("another key than this piped has")


def open_decrypter(management: SecretManagementSpec) -> Decrypter:
    """The keys that a piped is configured with; asks the key service for the public one."""
    config = management.config
    if management.type == KEY_PAIR:
        pair = key_pair(config)
        key = hybrid.PrivateKey(pair.private)
        if not key.is_half_of(pair.public):
            raise UserMistake(
                "secretManagement: the public key does not belong to the private key",
                hint="what people encrypt with it could not be decrypted; make the public key with "
                "`openssl rsa -in PRIVATE -pubout`",
            )
        public: bytes = pair.public
    else:
        key = _service_key(management.type, config, config.key_name)
        public = key.public_key()
    older = (_previous(management, each) for each in config.previous_keys)
    return Decrypter(public, [key, *older])


def _previous(management: SecretManagementSpec, key: PreviousKeySpec) -> Key:
    if key.key_name:
        return _service_key(management.type, management.config, key.key_name)
    return hybrid.PrivateKey(previous_key(key))


def _service_key(kind: str, config: SecretManagementConfig, name: str) -> AwsKey | GoogleKey:
    if kind == AWS_KMS:
        return AwsKey(open_aws("kms", region=config.region), name)
    account, shower = config.decrypt_service_account_file, config.encrypt_service_account_file
    ask = open_google("cloudkms", credentials_file=account)
    show = open_google("cloudkms", credentials_file=shower) if shower else ask
    return GoogleKey(ask, name, show=show)
