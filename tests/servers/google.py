# SPDX-License-Identifier: Apache-2.0
"""The few calls of Google Cloud that piped makes: tokens, Secret Manager and KMS, over REST."""

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

TOKEN = "a-token-of-the-tests"
_OAEP = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)

Answer = tuple[int, dict[str, Any]]


def refused(code: int, status: str, message: str) -> Answer:
    return code, {"error": {"code": code, "status": status, "message": message}}


@dataclass
class GoogleCloud:
    """A project with secrets and keys; `broken` answers everything if it is set."""

    directory: Path
    secrets: dict[str, bytes] = field(default_factory=dict[str, bytes])
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict[str, rsa.RSAPrivateKey])
    algorithm: str = "RSA_DECRYPT_OAEP_2048_SHA256"
    broken: Answer | None = None
    calls: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _door(self.answer))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self.account = self.directory / "service-account.json"
        self.account.write_text(json.dumps(self._account()))

    @property
    def environment(self) -> dict[str, str]:
        """What leads Google's own clients here."""
        return {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": self.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDKMS": self.url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.account),
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add_key(self, name: str) -> None:
        self.keys[name] = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def answer(self, path: str, token: str, body: bytes) -> Answer:
        self.calls.append(path)
        if path == "/token":
            return 200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        if token != f"Bearer {TOKEN}":
            return refused(401, "UNAUTHENTICATED", "no token")
        return self.broken or self._found(path.removeprefix("/v1/"), body)

    def _found(self, path: str, body: bytes) -> Answer:
        name, _, verb = path.partition(":")
        if verb == "access" and name in self.secrets:
            data = base64.b64encode(self.secrets[name]).decode()
            return 200, {"name": name, "payload": {"data": data}}
        key = self.keys.get(name.removesuffix("/publicKey"))
        if key is not None and name.endswith("/publicKey"):
            pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            return 200, {"pem": pem.decode(), "algorithm": self.algorithm}
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
    return 200, {"plaintext": base64.b64encode(plain).decode()}


def _door(answer: Callable[[str, str, bytes], Answer]) -> type[BaseHTTPRequestHandler]:
    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, told = answer(self.path, self.headers.get("Authorization") or "", body)
            content = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Stays silent."""

    return Door
