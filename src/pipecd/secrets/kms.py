# SPDX-License-Identifier: Apache-2.0
"""Key pairs of a cloud key service, which decrypts the key of each secret with its private key.

Encrypting needs only the public key, so that the console, `pipectl encrypt` and the format of
secrets are the same with a key service and without.
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
# The algorithm of a suitable key of Google has its size between these.
_GOOGLE_PREFIX, _GOOGLE_SUFFIX = "RSA_DECRYPT_OAEP_", "_SHA256"
_VERSION = "/cryptoKeyVersions/"


class AwsKey:
    """An asymmetric key of AWS KMS."""

    def __init__(self, call: AwsCall, name: str) -> None:
        self._call, self._name, self._about = call, name, f"the key {name} of AWS KMS"

    def public_key(self) -> bytes:
        """Returns the public key in PEM."""
        response = self._call("get_public_key", about=self._about, KeyId=self._name)
        if _AWS_ALGORITHM not in response.get("EncryptionAlgorithms", ()):
            raise UserMistake(
                f"{self._about} does not decrypt {_AWS_ALGORITHM}",
                hint="create it with --key-usage ENCRYPT_DECRYPT --key-spec RSA_2048 or larger",
            )
        public: Any = load_der_public_key(response["PublicKey"])
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def unwrap(self, sealed_key: bytes) -> bytes:
        """Decrypts the key of a secret."""
        try:
            response = self._call(
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
        return response["Plaintext"]


class GoogleKey:
    """A version of an asymmetric key of Google Cloud KMS; `get` may use other credentials."""

    def __init__(self, decrypt: GoogleCall, name: str, *, get: GoogleCall | None = None) -> None:
        if _VERSION not in name:
            raise UserMistake(
                f"keyName {name} names no version of a key",
                hint="write projects/…/locations/…/keyRings/…/cryptoKeys/…/cryptoKeyVersions/1",
            )
        self._decrypt, self._get, self._name = decrypt, get or decrypt, name
        self._about = f"the key {name} of Google Cloud KMS"

    def public_key(self) -> bytes:
        """Returns the public key in PEM."""
        response = self._get(f"v1/{self._name}/publicKey", about=self._about)
        algorithm = str(response.get("algorithm", ""))
        if not (algorithm.startswith(_GOOGLE_PREFIX) and algorithm.endswith(_GOOGLE_SUFFIX)):
            raise UserMistake(
                f"{self._about} is for {algorithm or 'something else'}",
                hint="create it with --purpose asymmetric-encryption "
                "--default-algorithm rsa-decrypt-oaep-2048-sha256 or larger",
            )
        return str(response["pem"]).strip().encode()

    def unwrap(self, sealed_key: bytes) -> bytes:
        """Decrypts the key of a secret."""
        body = {"ciphertext": base64.b64encode(sealed_key).decode()}
        try:
            response = self._decrypt(
                f"v1/{self._name}:asymmetricDecrypt", about=self._about, body=body
            )
        except CloudRejection as e:
            if e.code != "INVALID_ARGUMENT":
                raise
            raise WrongKey from e
        return base64.b64decode(response["plaintext"])
