# SPDX-License-Identifier: Apache-2.0
"""Prometheus on loopback; tests write samples, also of the past."""

import json
import struct
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from servers.programs import find
from servers.server import Server
from servers.varint import varint

SETTINGS = {"storage": {"tsdb": {"out_of_order_time_window": "30d"}}}


class Prometheus(Server):
    """Prometheus without targets; samples come by remote write and are there at once."""

    username = ""
    password = ""

    def find_program(self) -> str:
        return find("prometheus")

    def prepare(self) -> None:
        super().prepare()
        self.directory.joinpath("prometheus.yml").write_text(json.dumps(SETTINGS))
        web: dict[str, object] = {}
        if self.username:
            import bcrypt

            hashed = bcrypt.hashpw(self.password.encode(), bcrypt.gensalt(4)).decode()
            web = {"basic_auth_users": {self.username: hashed}}
        self.directory.joinpath("web.yml").write_text(json.dumps(web))

    def command(self) -> Sequence[str]:
        return [
            self.program,
            f"--config.file={self.directory}/prometheus.yml",
            f"--web.config.file={self.directory}/web.yml",
            f"--storage.tsdb.path={self.data}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-remote-write-receiver",
        ]

    def is_up(self) -> bool:
        with suppress(OSError):
            self._ask("/-/ready")
            return True
        return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(
        self, name: str, labels: Mapping[str, str], samples: Iterable[tuple[float, float]]
    ) -> None:
        """Adds samples, each a Unix time in seconds and a value, to the series of these labels."""
        series = b"".join(
            field(1, field(1, key.encode()) + field(2, value.encode()))
            for key, value in sorted({"__name__": name, **labels}.items())
        )
        for at, value in samples:
            sample = b"\x09" + struct.pack("<d", value) + b"\x10" + varint(int(at * 1000))
            series += field(2, sample)
        self._ask("/api/v1/write", snappy(field(1, series)))

    def _ask(self, path: str, body: bytes | None = None) -> None:
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        if self.username:
            pair = b64encode(f"{self.username}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=5):
            pass


class GuardedPrometheus(Prometheus):
    """The same behind a password."""

    username = "ann"
    password = "open sesame"


def field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer that has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def snappy(content: bytes) -> bytes:
    """The content as snappy reads it, in pieces that are not compressed."""
    pieces = [content[i : i + 60] for i in range(0, len(content), 60)]
    return varint(len(content)) + b"".join(bytes([(len(p) - 1) << 2]) + p for p in pieces)
