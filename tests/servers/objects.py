# SPDX-License-Identifier: Apache-2.0
"""Object stores on loopback: S3 by moto, Google Cloud Storage by fake-gcs-server."""

import json
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

from servers.programs import built_program
from servers.server import Server


class S3:
    """AWS of moto, in a thread."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point AWS's own clients to this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "eu-west-1",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def close(self) -> None:
        self._server.stop()


def opened_by_kms(
    backend: Any, ciphertext_blob: bytes, encryption_context: object, key_id: str
) -> tuple[bytes, str]:
    """What moto's KMS lacks: decryption with the asymmetric keys that it makes."""
    from moto.kms.exceptions import InvalidCiphertextException

    oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
    key = backend.describe_key(key_id)
    try:
        return key.private_key.private_key.decrypt(ciphertext_blob, oaep), key.arn
    except ValueError:
        raise InvalidCiphertextException from None


class Gcs(Server):
    """Buckets that speak Google's JSON API, in memory unless a subclass says otherwise."""

    @property
    def backend(self) -> Sequence[str]:
        """Where the objects are stored."""
        return ("-backend", "memory")

    def find_program(self) -> str:
        return built_program("fake-gcs-server")

    def command(self) -> Sequence[str]:
        return [
            self.program,
            *self.backend,
            *("-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)),
            *("-public-host", f"127.0.0.1:{self.port}"),
        ]

    def is_up(self) -> bool:
        return self.answers()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create(self, bucket: str) -> None:
        self._ask("/storage/v1/b?project=tests", json.dumps({"name": bucket}).encode())

    def about(self, bucket: str, name: str) -> dict[str, Any]:
        """The metadata of an object."""
        return self._ask(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=5) as reply:
            return json.load(reply)


class GcsOnDisk(Gcs):
    """Buckets that outlive a kill of their server."""

    @property
    def backend(self) -> Sequence[str]:
        return ("-backend", "filesystem", "-filesystem-root", str(self.data))
