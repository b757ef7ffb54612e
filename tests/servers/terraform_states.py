# SPDX-License-Identifier: Apache-2.0
"""A backend of Terraform that stores and locks a state over HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class TerraformStates:
    """One state and its lock, which stays when the program that holds it is killed."""

    def __init__(self) -> None:
        self.state = b""
        self.lock: dict[str, Any] | None = None
        self.refusal = 0
        """The status of every answer, if it is not 0."""
        self.is_reading = threading.Event()
        self._may_read = threading.Event()
        self._may_read.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._may_read.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def backend(self) -> str:
        """The block of a configuration that uses this backend."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}/state"
        keys = "".join(f'    {key} = "{url}"\n' for key in _ADDRESSES)
        return f'terraform {{\n  backend "http" {{\n{keys}  }}\n}}\n'

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs of all `terraform_data` in the state, by name."""
        return state_inputs(self.state) if self.state else {}

    def hold_reads(self) -> None:
        """Makes everybody wait who reads the state."""
        self.is_reading.clear()
        self._may_read.clear()

    def release_reads(self) -> None:
        self._may_read.set()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        states = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                states.is_reading.set()
                states._may_read.wait()
                self._answer(200 if states.state else 404, states.state)

            def do_POST(self) -> None:
                states.state = self._body()
                self._answer(200)

            def do_LOCK(self) -> None:
                wanted = json.loads(self._body())
                if states.lock is None:
                    states.lock = wanted
                    self._answer(200)
                else:
                    self._answer(423, json.dumps(states.lock).encode())

            def do_UNLOCK(self) -> None:
                self._body()
                states.lock = None
                self._answer(200)

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))

            def _answer(self, code: int, content: bytes = b"") -> None:
                self.send_response(states.refusal or code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Writes nothing."""

        return Handler


def state_inputs(state: bytes) -> dict[str, str]:
    """Returns the inputs of all `terraform_data` in a state, by name."""
    return {
        each["name"]: each["instances"][0]["attributes"]["input"]["value"]
        for each in json.loads(state)["resources"]
    }


_ADDRESSES = ("address", "lock_address", "unlock_address")
