# SPDX-License-Identifier: Apache-2.0
"""Decrypts the secrets in application files with the keys of a piped."""

import base64
import hashlib
import threading
from collections.abc import Sequence
from typing import Protocol

from pipecd.cache import LruCache
from pipecd.config.piped import (
    AWS_KMS,
    BOUND,
    KEY_PAIR,
    UNBOUND,
    SecretManagementConfig,
    SecretManagementSpec,
    key_pair,
    previous_key,
)
from pipecd.model.errors import UserMistake
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding
from pipecd.secrets.forms import is_too_short
from pipecd.secrets.kms import AwsKey, GoogleKey
from pipecd.secrets.masking import KnownSecrets
from pipecd.wire.cloud import open_aws, open_google

# Working copies are created all the time, and key services charge for each call.
_CACHE_SIZE = 10_000


class Key(Protocol):
    """A private key that decrypts the keys of secrets; may block."""

    def unwrap(self, sealed_key: bytes) -> bytes:
        """Decrypts the key of a secret; raises `hybrid.WrongKey` if it is for another key."""
        ...


class Decrypter:
    """The keys of a piped: the current one, whose public key encrypts new secrets, and older ones.

    Calls block; several threads may use it.
    """

    def __init__(
        self, public_key: bytes, keys: Sequence[Key], *, forms: Sequence[str] = (BOUND, UNBOUND)
    ) -> None:
        self.public_key = public_key
        self.known = KnownSecrets()
        """The secrets that were decrypted so far, for masking."""
        self._keys, self._forms = tuple(keys), frozenset(forms)
        self._cache = LruCache[bytes, bytes](_CACHE_SIZE)
        self._lock = threading.Lock()

    def decrypt(self, text: str, binding: Binding) -> str:
        """Decrypts a secret in the file that `binding` names."""
        sealed = self._read(text)
        secret = sealed.opened(self._unwrap(sealed.key), binding)
        self.known.add([secret])
        return secret

    def decrypt_maskable(self, text: str, binding: Binding) -> str:
        """Decrypts a secret, unless it is too short to be masked: that gets a placeholder."""
        secret = self.decrypt(text, binding)
        return self.placeholder(text, binding) if is_too_short(secret) else secret

    def placeholder(self, text: str, _binding: Binding) -> str:
        """Returns a text to render in place of a secret that must not be decrypted.

        It is the same as long as the encrypted secret is, so that a comparison shows a change of
        the one as a change of the other. It is base64 of printable text, so that templates which
        decode it, and manifests that contain it as base64, remain valid.
        """
        self._read(text)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        # The length is a multiple of three, so that base64 adds no padding.
        return base64.b64encode(f"not-decrypted-{digest}".encode()).decode()

    def _read(self, text: str) -> hybrid.Sealed:
        sealed = hybrid.read(text)
        form = BOUND if sealed.is_bound else UNBOUND
        if form not in self._forms:
            raise UserMistake(
                f"it is {form}, and secretManagement.forms of this piped does not list {form}",
                hint="encrypt the value again with `pipectl encrypt --app-id`",
            )
        return sealed

    def _unwrap(self, sealed_key: bytes) -> bytes:
        with self._lock:
            cached = self._cache.get(sealed_key)
        if cached is not None:
            return cached
        for key in self._keys:
            try:
                opened = key.unwrap(sealed_key)
            except hybrid.WrongKey:
                continue
            with self._lock:
                self._cache.put(sealed_key, opened)
            return opened
        if len(self._keys) > 1:
            raise hybrid.WrongKey(f"none of the {len(self._keys)} keys of this piped")
        raise hybrid.WrongKey("another key than this piped has")


def open_decrypter(management: SecretManagementSpec) -> Decrypter:
    """Opens the configured keys; requests the public key from the key service if there is one."""
    config = management.config
    if management.type == KEY_PAIR:
        pair = key_pair(config)
        key = hybrid.PrivateKey(pair.private)
        if not key.matches(pair.public):
            raise UserMistake(
                "secretManagement: the public key does not belong to the private key",
                hint="piped could not decrypt new secrets; create the public key with "
                "`openssl rsa -in PRIVATE -pubout`",
            )
        public: bytes = pair.public
    else:
        key = _service_key(management.type, config, config.key_name)
        public = key.public_key()
    keys: list[Key] = [key]
    for previous in config.previous_keys:
        if previous.key_name:
            keys.append(_service_key(management.type, config, previous.key_name))
        else:
            keys.append(hybrid.PrivateKey(previous_key(previous)))
    return Decrypter(public, keys, forms=management.forms)


def _service_key(kind: str, config: SecretManagementConfig, name: str) -> AwsKey | GoogleKey:
    if kind == AWS_KMS:
        return AwsKey(open_aws("kms", region=config.region), name)
    decrypter, encrypter = config.decrypt_service_account_file, config.encrypt_service_account_file
    decrypt = open_google("cloudkms", credentials_file=decrypter)
    get = open_google("cloudkms", credentials_file=encrypter) if encrypter else decrypt
    return GoogleKey(decrypt, name, get=get)
