# SPDX-License-Identifier: Apache-2.0
"""Proves who is calling: tokens, passwords, and programs that print tokens."""

import asyncio
import json
import os
import time
from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipecd.plugins.kubernetes.cluster.kubeconfig import Connection, Program
from pipecd.plugins.kubernetes.manifest.body import text_at
from pipecd.sdk import UserMistake
from pipecd.sdk.program import capture

# Tokens of a pod are renewed in place; a read file is trusted so long.
_REREAD = 60.0
# A token is renewed so many seconds before it ends.
_EARLY = 30.0


@dataclass(frozen=True)
class _Known:
    """A header value and until when it holds on the monotonic clock."""

    value: str
    until: float


class Credentials:
    """The `authorization` header of one connection, renewed when it ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: _Known | None = None
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        """Returns the header to send, an empty one when a certificate is all there is."""
        async with self._lock:
            if self._known is None or self._known.until <= time.monotonic():
                self._known = await self._renewed()
            return self._known.value

    def forget(self) -> None:
        """Asks anew at the next call, because the server refused what is known."""
        self._known = None

    async def _renewed(self) -> _Known:
        connection = self._connection
        if connection.program is not None:
            return await _printed(connection.program)
        if connection.token_file is not None:
            token = await asyncio.to_thread(connection.token_file.read_text)
            return _Known(f"Bearer {token.strip()}", time.monotonic() + _REREAD)
        if connection.token:
            return _Known(f"Bearer {connection.token}", float("inf"))
        if connection.user:
            pair = f"{connection.user}:{connection.password}".encode()
            return _Known(f"Basic {b64encode(pair).decode()}", float("inf"))
        return _Known("", float("inf"))


async def _printed(program: Program) -> _Known:
    """Runs the program of a kubeconfig and reads the credential that it prints."""
    request = {
        "apiVersion": program.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = {
        **os.environ,
        **program.environment,
        "KUBERNETES_EXEC_INFO": json.dumps(request),
    }
    argv = [program.command, *program.arguments]
    try:
        captured = await capture(argv, cwd=Path.cwd(), env=environment)
    except OSError as e:
        hint = program.hint or "install it where piped runs"
        raise UserMistake(f"{program.command} cannot be run: {e.strerror}", hint=hint) from e
    if captured.code != 0:
        said = captured.stderr.decode(errors="replace").strip()[-300:]
        raise UserMistake(
            f"{program.command} gave no credentials (exit code {captured.code}): {said}",
            hint="run it as the user of piped; the kubeconfig names it at users[].user.exec",
        )
    return _credential(program.command, captured.stdout)


def _credential(command: str, output: bytes) -> _Known:
    try:
        answer = json.loads(output)
        token = text_at(answer, "status", "token")
        ends = text_at(answer, "status", "expirationTimestamp")
        seconds = datetime.fromisoformat(ends).timestamp() - time.time() if ends else float("inf")
    except ValueError as e:
        raise UserMistake(f"{command} printed no ExecCredential") from e
    if not token:
        raise UserMistake(
            f"{command} printed no token; client certificates of programs are not read"
        )
    return _Known(f"Bearer {token}", time.monotonic() + max(seconds - _EARLY, 1.0))
