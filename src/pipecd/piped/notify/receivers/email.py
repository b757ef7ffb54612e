# SPDX-License-Identifier: Apache-2.0
"""Sends notifications by e-mail, with the SMTP client of the standard library in a thread."""

import asyncio
import base64
import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape as escape_html
from typing import Self

import httpx2
import structlog

from pipecd.config.piped import mail_password
from pipecd.config.piped_notifications import EmailSpec, is_mail_address
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.piped.notify.event import subject_of
from pipecd.piped.notify.message import Message, truncate
from pipecd.piped.notify.outbox import Delivery
from pipecd.piped.notify.template import MessageRenderer

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MAX_SUBJECT = 200
_MAX_QUOTED_REPLY = 200
_SOCKET_TIMEOUT = 10.0


@dataclass(frozen=True)
class EmailReceiver:
    """Sends to the configured addresses and to those that the application mentions."""

    spec: EmailSpec
    renderer: MessageRenderer
    tls: ssl.SSLContext | None

    @classmethod
    def create(cls, spec: EmailSpec, renderer: MessageRenderer, _: httpx2.AsyncClient) -> Self:
        """Raises if the password or the certificates cannot be read; uses no HTTP client."""
        mail_password(spec)
        if spec.tls == "NONE":
            return cls(spec, renderer, None)
        try:
            context = ssl.create_default_context(cafile=spec.ca_file or None)
        except OSError as e:
            raise UserMistake(
                f"notifications.receivers.email.caFile: cannot use {spec.ca_file}: {e}",
                hint="name a file with certificates in PEM",
            ) from e
        return cls(spec, renderer, context)

    async def send(self, delivery: Delivery) -> None:
        message = self.renderer.render(delivery, str)
        mentioned = filter(is_mail_address, message.mentions.emails)
        recipients = tuple(dict.fromkeys([*self.spec.to, *mentioned]))
        email = create_email(message, delivery, self.spec.sender, recipients)
        # The password is read now, because its file may have changed.
        session = SmtpSession(self.spec, mail_password(self.spec), self.tls)
        try:
            await asyncio.to_thread(session.send, recipients, email.as_bytes(policy=SMTP))
        except asyncio.CancelledError:
            session.abort()
            raise


def create_email(
    message: Message, delivery: Delivery, sender: str, recipients: tuple[str, ...]
) -> EmailMessage:
    """The message as an e-mail; all e-mails about a deployment are one thread."""
    domain = sender.rpartition("@")[2]
    email = EmailMessage()
    email["From"], email["To"] = f"PipeCD <{sender}>", ", ".join(recipients)
    email["Subject"] = truncate(" ".join(message.title.split()), _MAX_SUBJECT)
    email["Date"] = format_datetime(delivery.created_at)
    email["Message-ID"] = f"<{delivery.id}@{domain}>"
    email["Auto-Submitted"] = "auto-generated"
    deployment = subject_of(delivery.event.metadata).deployment
    if deployment is not None:
        email["References"] = f"<{deployment.id}@{domain}>"
    fields = [f"{field.name}: {field.value}" for field in message.fields]
    parts = [message.title, message.text, "\n".join(fields), message.link]
    email.set_content("\n\n".join(part for part in parts if part) + "\n")
    email.add_alternative(_html(message), subtype="html")
    return email


def _html(message: Message) -> str:
    colour = message.severity.value
    title = _html_link(message.title, message.link)
    text = f"<pre style='white-space: pre-wrap'>{escape_html(message.text)}</pre>"
    rows = "".join(
        f"<tr><td>{escape_html(field.name)}</td><td>{_html_link(field.value, field.link)}</td></tr>"
        for field in message.fields
    )
    return (
        f"<h3 style='border-left: 4px solid {colour}; padding-left: 8px'>{title}</h3>"
        f"{text if message.text else ''}<table>{rows}</table>"
    )


def _html_link(text: str, link: str) -> str:
    return f'<a href="{escape_html(link)}">{escape_html(text)}</a>' if link else escape_html(text)


@dataclass
class SmtpSession:
    """One connection to the SMTP server; `send` blocks, `abort` ends it from another thread."""

    spec: EmailSpec
    password: str = field(repr=False)
    tls: ssl.SSLContext | None
    _smtp: smtplib.SMTP | None = None

    def send(self, recipients: Sequence[str], email: bytes) -> None:
        """Sends an e-mail to the recipients that the server accepts; there must be one."""
        try:
            host, port = self.spec.host, self.spec.server_port
            if self.spec.tls == "TLS":
                smtp = smtplib.SMTP_SSL(
                    host, port, "localhost", timeout=_SOCKET_TIMEOUT, context=self.tls
                )
            else:
                smtp = smtplib.SMTP(host, port, "localhost", timeout=_SOCKET_TIMEOUT)
            self._smtp = smtp
            try:
                self._authenticate(smtp)
                rejected = smtp.sendmail(self.spec.sender, recipients, email)
                for code, reply in rejected.values():
                    log.warning(
                        "mail server rejected a recipient",
                        server=self._server,
                        error=_quote(code, reply),
                    )
                with suppress(smtplib.SMTPException, OSError):
                    smtp.quit()
            finally:
                smtp.close()
        except (smtplib.SMTPException, OSError, ValueError) as e:
            raise self._error(e) from e

    def abort(self) -> None:
        """Closes the connection, so that the thread that waits for the server returns."""
        if self._smtp is not None and (connection := self._smtp.sock) is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def _server(self) -> str:
        return f"{self.spec.host}:{self.spec.server_port}"

    def _authenticate(self, smtp: smtplib.SMTP) -> None:
        _ehlo(smtp)
        if self.spec.tls == "STARTTLS":
            if not smtp.has_extn("starttls"):
                raise UserMistake(
                    f"the mail server {self.spec.host} does not offer STARTTLS",
                    hint="set tls to TLS, or to NONE if the network is trusted",
                )
            smtp.starttls(context=self.tls)
            _ehlo(smtp)
        user = self.spec.username
        if not user:
            return
        if (user + self.password).isascii():
            smtp.login(user, self.password)
            return
        # smtplib encodes credentials as ASCII only; RFC 4616 says UTF-8.
        token = base64.b64encode(f"\0{user}\0{self.password}".encode()).decode()
        code, reply = smtp.docmd("AUTH", f"PLAIN {token}")
        if code != 235:
            raise smtplib.SMTPAuthenticationError(code, reply)

    def _error(self, error: Exception) -> PipecdError:
        match error:
            case smtplib.SMTPRecipientsRefused():
                code, reply = next(iter(error.recipients.values()))
            case smtplib.SMTPResponseException():
                code, reply = error.smtp_code, error.smtp_error
            case smtplib.SMTPNotSupportedError():
                return UserMistake(f"the mail server {self._server} does not support it: {error}")
            case _:
                cause = str(error) or "the connection was closed"
                return Unavailable(f"cannot send e-mail by {self._server}: {cause}")
        message = f"the mail server {self._server} responded {_quote(code, reply)}"
        # smtplib returns -1 for a reply that has no code.
        is_transient = code < 0 or 400 <= code < 500
        return Unavailable(message) if is_transient else UserMistake(message)


def _ehlo(smtp: smtplib.SMTP) -> None:
    code, reply = smtp.ehlo()
    if code != 250:
        raise smtplib.SMTPHeloError(code, reply)


def _quote(code: int, reply: bytes | str) -> str:
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    return f"{code}: {text[:_MAX_QUOTED_REPLY]}"
