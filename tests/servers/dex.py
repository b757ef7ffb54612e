# SPDX-License-Identifier: Apache-2.0
"""Dex on loopback, a provider of OpenID Connect."""

import json
from collections.abc import Sequence
from typing import Any

from servers.programs import built_program
from servers.server import Server

CLIENT, SECRET = "pipecd", "the secret of pipecd"
EMAIL, PASSWORD = "olga@example.com", "open sesame"


class Dex(Server):
    """Knows one person with a password, one with groups, and one client at `callback`."""

    def __init__(self, callback: str) -> None:
        self.callback = callback
        super().__init__()

    def find_program(self) -> str:
        return built_program("dex")

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}/dex"

    def prepare(self) -> None:
        super().prepare()
        self.directory.joinpath("dex.yaml").write_text(json.dumps(self._configuration()))

    def command(self) -> Sequence[str]:
        return [self.program, "serve", f"{self.directory}/dex.yaml"]

    def is_up(self) -> bool:
        return self.answers()

    def _configuration(self) -> dict[str, Any]:
        import bcrypt

        secret = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
        client = {"id": CLIENT, "name": "PipeCD", "secret": SECRET, "redirectURIs": [self.callback]}
        person = {"email": EMAIL, "hash": secret, "username": "olga", "userID": "1"}
        return {
            "issuer": self.issuer,
            "storage": {"type": "memory"},
            "web": {"http": f"127.0.0.1:{self.port}"},
            "oauth2": {"skipApprovalScreen": True},
            "staticClients": [client],
            "enablePasswordDB": True,
            "staticPasswords": [person],
            # Signs in Kilgore Trout of the group authors, and asks nothing.
            "connectors": [{"type": "mockCallback", "id": "mock", "name": "Mock"}],
        }
