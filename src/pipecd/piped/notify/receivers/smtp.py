# SPDX-License-Identifier: Apache-2.0
"""Hands one mail to a server, in the words of SMTP."""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from pipecd.model.errors import Unavailable, UserMistake

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_LINE = re.compile(rb"\r\n|\r|\n")
_MOST_LINES = 100


@dataclass(frozen=True)
class MailServer:
    """Where mail is handed over; without a user nobody logs in.

    `tls` protects the connection from its first byte, `starttls` once the server has agreed.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    starttls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"MailServer({self.host}:{self.port})"


@dataclass(frozen=True)
class _Reply:
    code: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.lines)


async def deliver(server: MailServer, sender: str, readers: Sequence[str], mail: bytes) -> None:
    """Hands a mail over for those readers that the server accepts, of whom there must be one."""
    try:
        async with _connected(server) as talk:
            await talk.greet()
            if server.starttls is not None:
                await talk.protect(server.starttls, server.host)
            if server.user:
                await talk.log_in(server.user, server.password)
            await talk.hand_over(sender, readers, mail)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as e:
        told = str(e) or "the connection was closed"
        raise Unavailable(f"cannot hand mail to {server.host}:{server.port}: {told}") from e


@asynccontextmanager
async def _connected(server: MailServer) -> AsyncGenerator["_Talk"]:
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=server.tls)
    try:
        yield _Talk(reader, writer)
    finally:
        writer.close()
        # Whether the other side says goodbye is of no interest.
        with suppress(OSError):
            await writer.wait_closed()


class _Talk:
    """A conversation with a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._offers: dict[str, str] = {}

    async def greet(self) -> None:
        _expect(await self._reply(), 220)
        await self._introduce()

    async def _introduce(self) -> None:
        answer = _expect(await self._ask("EHLO localhost"), 250)
        offers = (line.partition(" ") for line in answer.lines[1:])
        self._offers = {name.upper(): rest for name, _, rest in offers}

    async def protect(self, context: ssl.SSLContext, host: str) -> None:
        if "STARTTLS" not in self._offers:
            raise UserMistake(
                f"the mail server {host} does not offer STARTTLS",
                hint="set tls to TLS, or to NONE if the way to it is safe",
            )
        _expect(await self._ask("STARTTLS"), 220)
        await self._writer.start_tls(context, server_hostname=host)
        await self._introduce()

    async def log_in(self, user: str, password: str) -> None:
        ways = self._offers.get("AUTH", "").upper().split()
        if "PLAIN" in ways or not ways:
            proof = _base64(f"\0{user}\0{password}")
            _expect(await self._ask(f"AUTH PLAIN {proof}"), 235)
        else:
            _expect(await self._ask("AUTH LOGIN"), 334)
            _expect(await self._ask(_base64(user)), 334)
            _expect(await self._ask(_base64(password)), 235)

    async def hand_over(self, sender: str, readers: Sequence[str], mail: bytes) -> None:
        _expect(await self._ask(f"MAIL FROM:<{sender}>"), 250)
        refusals = [
            answer
            for reader in readers
            if (answer := await self._ask(f"RCPT TO:<{reader}>")).code not in (250, 251)
        ]
        if len(refusals) == len(readers):
            _expect(refusals[0], 250)
        for refusal in refusals:
            log.warning("a mail address was refused", error=refusal.text)
        _expect(await self._ask("DATA"), 354)
        self._writer.write(stuffed(mail))
        _expect(await self._ask("."), 250)
        await self._ask("QUIT")

    async def _ask(self, line: str) -> _Reply:
        self._writer.write(f"{line}\r\n".encode())
        await self._writer.drain()
        return await self._reply()

    async def _reply(self) -> _Reply:
        lines: list[str] = []
        while len(lines) < _MOST_LINES:
            line = (await self._reader.readuntil(b"\n")).decode("utf-8", "replace").rstrip("\r\n")
            lines.append(line[4:])
            if line[3:4] != "-":
                return _Reply(int(line[:3]), tuple(lines))
        raise ValueError("the answer has no end")


def _expect(reply: _Reply, code: int) -> _Reply:
    if reply.code == code:
        return reply
    told = f"the mail server answered {reply.code}: {reply.text[:200]}"
    if 400 <= reply.code < 500:
        raise Unavailable(told)
    raise UserMistake(told)


def stuffed(mail: bytes) -> bytes:
    """The mail with the line ends of the protocol, in which no line looks like its end."""
    lines = _LINE.split(mail.rstrip(b"\r\n"))
    return b"".join((b"." + line if line.startswith(b".") else line) + b"\r\n" for line in lines)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
