# SPDX-License-Identifier: Apache-2.0
"""Receivers of notifications on loopback: one for everything over HTTP, one for mail."""

import base64
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from servers.web import Answer, Request, WebServer, in_json

SLACK_HOOK = "/services/T0/B0/slack-hook-secret"
SLACK_API = "/api/chat.postMessage"
SLACK_TOKEN = "xoxb-slack-token-secret"
WEBHOOK = "/webhook/webhook-url-secret"
TEAMS = "/workflows/teams-hook-secret"
DISCORD = "/api/webhooks/1/discord-hook-secret"
SIGNATURE = "webhook-shared-secret"
SIGNING_SECRET = "whsec_" + base64.b64encode(b"webhook-signing-secret").decode()


@dataclass(frozen=True)
class Delivery:
    """A request that arrived; the names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receivers(WebServer):
    """An HTTP server that takes whatever is posted and remembers it."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        # The next answers at a path; afterwards everything is well again.
        self.answers: dict[str, list[Answer]] = {}
        # Paths that never answer.
        self.hanging: set[str] = set()
        # Paths that answer that they are unavailable, and remember nothing but how often.
        self.unavailable: set[str] = set()
        self.refused = 0
        self._ends = threading.Event()
        super().__init__()

    def url(self, path: str) -> str:
        return f"{self.address}{path}"

    def at(self, path: str) -> list[Delivery]:
        """The requests that arrived at a path."""
        return [delivery for delivery in self.deliveries if delivery.path == path]

    def answer(self, request: Request) -> Answer | None:
        if request.path in self.unavailable:
            self.refused += 1
            return Answer(503)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.deliveries.append(Delivery(request.path, headers, request.body))
        if request.path in self.hanging:
            self._ends.wait()
            return None
        planned = self.answers.get(request.path)
        if planned:
            return planned.pop(0)
        return in_json({"ok": True}) if request.path == SLACK_API else Answer(body=b"ok")

    def close(self) -> None:
        self._ends.set()
        super().close()


@dataclass(frozen=True)
class Mail:
    """A mail that arrived, and its recipients."""

    sender: str
    readers: tuple[str, ...]
    content: EmailMessage
    was_protected: bool
    login: str

    @property
    def subject(self) -> str:
        return str(self.content["Subject"])

    def text(self, kind: str = "plain") -> str:
        part = self.content.get_body((kind,))
        assert part is not None
        return str(part.get_content()).replace("\r\n", "\n")


class Mailbox:
    """A mail server; `certificate` makes it offer STARTTLS, or speak TLS from the first byte."""

    def __init__(
        self,
        certificate: tuple[str, str] | None = None,
        *,
        from_the_first_byte: bool = False,
        ways: str = "PLAIN LOGIN",
    ) -> None:
        self.mails: list[Mail] = []
        self.login = ""
        """The required `user:password`, if any."""
        self.ways = ways
        self.replies: dict[str, list[str]] = {}
        """The next replies to a command in place of the usual ones."""
        self.is_hanging = False
        self.ends = threading.Event()
        self.context: ssl.SSLContext | None = None
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*certificate)
        self.from_the_first_byte = from_the_first_byte
        mailbox = self

        class Handler(_Counter):
            kept = mailbox

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self.ends.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Counter(socketserver.BaseRequestHandler):
    """One conversation with one who brings mail."""

    kept: Mailbox

    def handle(self) -> None:
        self._connection = self.request
        self._protected = False
        self._who = self._sender = ""
        self._readers: list[str] = []
        try:
            if self.kept.from_the_first_byte:
                self._protect()
            if self.kept.is_hanging:
                self.kept.ends.wait()
                return
            self._file = self._connection.makefile("rb")
            self._say(self._planned("CONNECT") or "220 mail.test ready")
            while line := self._file.readline():
                if not self._answer(line.decode().rstrip("\r\n")):
                    return
        except OSError:
            return
        finally:
            # The one with TLS is not the one that the server closes.
            self._connection.close()

    def _protect(self) -> None:
        assert self.kept.context is not None
        self._connection = self.kept.context.wrap_socket(self._connection, server_side=True)
        self._protected = True

    def _say(self, text: str) -> None:
        self._connection.sendall(f"{text}\r\n".encode())

    def _planned(self, command: str) -> str:
        planned = self.kept.replies.get(command)
        return planned.pop(0) if planned else ""

    def _answer(self, line: str) -> bool:
        word = line.split(" ", maxsplit=1)[0].upper()
        if planned := self._planned(word):
            self._say(planned)
            return True
        answers: dict[str, Callable[[str], bool]] = {
            "EHLO": self._ehlo,
            "STARTTLS": self._starttls,
            "AUTH": self._auth,
            "MAIL": self._mail,
            "RCPT": self._rcpt,
            "DATA": self._data,
            "RSET": self._reset,
            "QUIT": self._quit,
        }
        return answers[word](line)

    def _ehlo(self, line: str) -> bool:
        offers = ["mail.test", f"AUTH {self.kept.ways}", "SIZE 1000000"]
        if self.kept.context is not None and not self._protected:
            offers.insert(1, "STARTTLS")
        for offer in offers[:-1]:
            self._say(f"250-{offer}")
        self._say(f"250 {offers[-1]}")
        return True

    def _starttls(self, line: str) -> bool:
        self._say("220 go ahead")
        self._protect()
        self._file = self._connection.makefile("rb")
        return True

    def _auth(self, line: str) -> bool:
        _, way, *rest = line.split(" ")
        initial = base64.b64decode(rest[0]).decode() if rest else ""
        if way == "PLAIN":
            _, user, password = initial.split("\0")
        else:
            user = initial or self._prompt("VXNlcm5hbWU6")
            password = self._prompt("UGFzc3dvcmQ6")
        self._who = f"{user}:{password}"
        is_right = self._who == self.kept.login
        self._say("235 welcome" if is_right else "535 the password is wrong")
        return True

    def _prompt(self, question: str) -> str:
        self._say(f"334 {question}")
        return base64.b64decode(self._file.readline().strip()).decode()

    def _mail(self, line: str) -> bool:
        if self.kept.login and self._who != self.kept.login:
            self._say("530 log in first")
            return True
        self._sender, self._readers = _address(line), []
        self._say("250 ok")
        return True

    def _rcpt(self, line: str) -> bool:
        self._readers.append(_address(line))
        self._say("250 ok")
        return True

    def _reset(self, line: str) -> bool:
        self._sender, self._readers = "", []
        self._say("250 ok")
        return True

    def _data(self, line: str) -> bool:
        self._say("354 go on")
        content = b""
        while (part := self._file.readline()) != b".\r\n":
            assert part.endswith(b"\r\n")
            content += part.removeprefix(b".")
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.kept.mails.append(
            Mail(self._sender, tuple(self._readers), mail, self._protected, self._who)
        )
        self._say("250 taken")
        return True

    def _quit(self, line: str) -> bool:
        self._say("221 bye")
        return False


def notifications_config(receivers: Receivers, mailbox: Mailbox) -> str:
    """The notifications of a piped configuration that send every event to each kind of receiver."""
    return f"""\
notifications:
  routes:
    - {{name: a, receiver: slack}}
    - {{name: b, receiver: program}}
    - {{name: c, receiver: teams}}
    - {{name: d, receiver: discord}}
    - {{name: e, receiver: mail}}
  receivers:
    - name: slack
      slack: {{hookURL: "{receivers.url(SLACK_HOOK)}"}}
    - name: program
      webhook:
        url: "{receivers.url(WEBHOOK)}"
        signatureValue: {SIGNATURE}
        signingSecret: {SIGNING_SECRET}
    - name: teams
      teams: {{hookURL: "{receivers.url(TEAMS)}"}}
    - name: discord
      discord: {{hookURL: "{receivers.url(DISCORD)}"}}
    - name: mail
      email:
        host: 127.0.0.1
        port: {mailbox.port}
        tls: NONE
        from: pipecd@example.com
        to: [team@example.com]
"""


def _address(line: str) -> str:
    """The address in a MAIL or RCPT command, without the parameters that follow it."""
    return line.partition("<")[2].partition(">")[0]
