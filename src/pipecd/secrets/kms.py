# SPDX-License-Identifier: Apache-2.0
"""Key pairs whose private half never leaves a key service: it opens the key of each secret.

The public half is all that is needed to encrypt, so that the console, `pipectl encrypt` and the
form of a secret are the same with a key service and without.
"""

import base64
from typing import Any

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from pipecd.model.errors import UserMistake
from pipecd.secrets.hybrid import WrongKey
from pipecd.wire.cloud import AwsCall, CloudRejection, GoogleCall

_AWS_ALGORITHM = "RSAES_OAEP_SHA_256"
# What Google calls a key that decrypts as secrets need it, with its size in place of the dots.
_GOOGLE_PREFIX, _GOOGLE_SUFFIX = "RSA_DECRYPT_OAEP_", "_SHA256"
_VERSION = "/cryptoKeyVersions/"


class AwsKey:
    """An asymmetric key of AWS KMS."""

    def __init__(self, ask: AwsCall, name: str) -> None:
        self._ask, self._name, self._about = ask, name, f"the key {name} of AWS KMS"

    def public_key(self) -> bytes:
        """The public half in PEM."""
        answer = self._ask("get_public_key", about=self._about, KeyId=self._name)
        if _AWS_ALGORITHM not in answer.get("EncryptionAlgorithms", ()):
            raise UserMistake(
                f"{self._about} does not decrypt {_AWS_ALGORITHM}",
                hint="create it with --key-usage ENCRYPT_DECRYPT --key-spec RSA_2048 or larger",
            )
        public: Any = load_der_public_key(answer["PublicKey"])
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def unwrap(self, sealed_key: bytes) -> bytes:
        """The key of a secret that was encrypted for this one."""
        try:
            answer = self._ask(
                "decrypt",
                about=self._about,
                KeyId=self._name,
                CiphertextBlob=sealed_key,
                EncryptionAlgorithm=_AWS_ALGORITHM,
            )
        except CloudRejection as e:
            if e.code != "InvalidCiphertextException":
                raise
            raise WrongKey from e
        return answer["Plaintext"]


class GoogleKey:
    """A version of an asymmetric key of Google Cloud KMS; `show` may differ in its credentials."""

    def __init__(self, ask: GoogleCall, name: str, *, show: GoogleCall | None = None) -> None:
        if _VERSION not in name:
            raise UserMistake(
                f"keyName {name} names no version of a key",
                hint="write projects/…/locations/…/keyRings/…/cryptoKeys/…/cryptoKeyVersions/1",
            )
        self._ask, self._show, self._name = ask, show or ask, name
        self._about = f"the key {name} of Google Cloud KMS"

    def public_key(self) -> bytes:
        """The public half in PEM."""
        answer = self._show(f"v1/{self._name}/publicKey", about=self._about)
        algorithm = str(answer.get("algorithm", ""))
        if not (algorithm.startswith(_GOOGLE_PREFIX) and algorithm.endswith(_GOOGLE_SUFFIX)):
            raise UserMistake(
                f"{self._about} is for {algorithm or 'something else'}",
                hint="create it with --purpose asymmetric-encryption "
                "--default-algorithm rsa-decrypt-oaep-2048-sha256 or larger",
            )
        return str(answer["pem"]).strip().encode()

    def unwrap(self, sealed_key: bytes) -> bytes:
        """The key of a secret that was encrypted for this one."""
        body = {"ciphertext": base64.b64encode(sealed_key).decode()}
        try:
            answer = self._ask(f"v1/{self._name}:asymmetricDecrypt", about=self._about, body=body)
        except CloudRejection as e:
            if e.code != "INVALID_ARGUMENT":
                raise
            raise WrongKey from e
        return base64.b64decode(answer["plaintext"])
