# SPDX-License-Identifier: Apache-2.0
"""The few calls of Google Cloud that piped makes: tokens, Secret Manager and KMS, over REST."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from servers.web import Answer, Request, WebServer, in_json

TOKEN = "a-token-of-the-tests"
_OAEP = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)


def refused(code: int, status: str, message: str) -> Answer:
    return in_json({"error": {"code": code, "status": status, "message": message}}, code)


@dataclass
class GoogleCloud(WebServer):
    """A project with secrets and keys; `broken` answers everything if it is set."""

    directory: Path
    secrets: dict[str, bytes] = field(default_factory=dict[str, bytes])
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict[str, rsa.RSAPrivateKey])
    algorithm: str = "RSA_DECRYPT_OAEP_2048_SHA256"
    broken: tuple[int, dict[str, Any]] | None = None
    calls: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__()
        self.url = f"{self.address}/"
        self.account = self.directory / "service-account.json"
        self.account.write_text(json.dumps(self._account()))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point Google's own clients to this server."""
        return {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": self.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDKMS": self.url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.account),
        }

    def add_key(self, name: str) -> None:
        self.keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def answer(self, request: Request) -> Answer:
        self.calls.append(request.target)
        if request.path == "/token":
            token = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            return in_json(token)
        if request.authorization != f"Bearer {TOKEN}":
            return refused(401, "UNAUTHENTICATED", "no token")
        if self.broken is not None:
            code, error = self.broken
            return in_json(error, code)
        return self._found(request.path.removeprefix("/v1/"), request.body)

    def _found(self, path: str, body: bytes) -> Answer:
        name, _, verb = path.partition(":")
        if verb == "access" and name in self.secrets:
            data = base64.b64encode(self.secrets[name]).decode()
            return in_json({"name": name, "payload": {"data": data}})
        key = self.keys.get(name.removesuffix("/publicKey"))
        if key is not None and name.endswith("/publicKey"):
            pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            return in_json({"pem": pem.decode(), "algorithm": self.algorithm})
        if key is not None and verb == "asymmetricDecrypt":
            return _decrypted(key, json.loads(body)["ciphertext"])
        return refused(404, "NOT_FOUND", f"{name} not found")

    def _account(self) -> dict[str, str]:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return {
            "type": "service_account",
            "project_id": "shop",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": "piped@shop.example.com",
            "client_id": "1",
            "token_uri": f"{self.url}token",
        }


def _decrypted(key: rsa.RSAPrivateKey, ciphertext: str) -> Answer:
    try:
        plain = key.decrypt(base64.b64decode(ciphertext), _OAEP)
    except ValueError:
        return refused(400, "INVALID_ARGUMENT", "Decryption failed: the ciphertext is invalid.")
    return in_json({"plaintext": base64.b64encode(plain).decode()})
