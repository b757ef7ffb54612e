# SPDX-License-Identifier: Apache-2.0
"""People who read mail."""

import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape as as_html

from pipecd.config.piped.credential import mail_password
from pipecd.config.piped.notification import EmailSpec, is_mail_address
from pipecd.model.errors import UserMistake
from pipecd.piped.notify.message import Field, Message
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.receivers.smtp import MailServer, deliver
from pipecd.piped.notify.subject import subject_of
from pipecd.piped.notify.wording import Wording, cut

_MOST_SUBJECT = 200


@dataclass(frozen=True)
class MailReceiver:
    """Writes to some addresses, and to those whom the application mentions."""

    spec: EmailSpec
    wording: Wording
    context: ssl.SSLContext | None

    async def send(self, letter: Letter) -> None:
        message = self.wording.of(letter, str)
        mentioned = filter(is_mail_address, message.mentions.emails)
        readers = tuple(dict.fromkeys([*self.spec.to, *mentioned]))
        content = mail(message, letter, self.spec.sender, readers).as_bytes(policy=SMTP)
        await deliver(self.server(), self.spec.sender, readers, content)

    def server(self) -> MailServer:
        """The server, with what is in the files by now."""
        return MailServer(
            host=self.spec.host,
            port=self.spec.server_port,
            tls=self.context if self.spec.tls == "TLS" else None,
            starttls=self.context if self.spec.tls == "STARTTLS" else None,
            user=self.spec.username,
            password=mail_password(self.spec),
        )


def mail(message: Message, letter: Letter, sender: str, readers: tuple[str, ...]) -> EmailMessage:
    """The message as mail; all that is written about a deployment is one conversation."""
    domain = sender.rpartition("@")[2]
    made = EmailMessage()
    made["From"], made["To"] = f"PipeCD <{sender}>", ", ".join(readers)
    made["Subject"] = cut(" ".join(message.title.split()), _MOST_SUBJECT)
    made["Date"] = format_datetime(letter.told_at)
    made["Message-ID"] = f"<{letter.id}@{domain}>"
    made["Auto-Submitted"] = "auto-generated"
    deployment = subject_of(letter.notice.facts).deployment
    if deployment is not None:
        made["References"] = f"<{deployment.id}@{domain}>"
    made.set_content(_plain(message))
    made.add_alternative(_html(message), subtype="html")
    return made


def _plain(message: Message) -> str:
    facts = [f"{field.name}: {field.value}" for field in message.fields]
    parts = [message.title, message.text, "\n".join(facts), message.link]
    return "\n\n".join(part for part in parts if part) + "\n"


def _html(message: Message) -> str:
    title = _linked(message.title, message.link)
    text = f"<pre style='white-space: pre-wrap'>{as_html(message.text)}</pre>"
    rows = "".join(_row(field) for field in message.fields)
    return (
        f"<h3 style='border-left: 4px solid {message.mood.value}; padding-left: 8px'>{title}</h3>"
        f"{text if message.text else ''}<table>{rows}</table>"
    )


def _row(field: Field) -> str:
    return f"<tr><td>{as_html(field.name)}</td><td>{_linked(field.value, field.link)}</td></tr>"


def _linked(text: str, link: str) -> str:
    return f'<a href="{as_html(link)}">{as_html(text)}</a>' if link else as_html(text)


def tls_of(spec: EmailSpec) -> ssl.SSLContext | None:
    """How the server is checked, or nothing where it is not."""
    if spec.tls == "NONE":
        return None
    try:
        return ssl.create_default_context(cafile=spec.ca_file or None)
    except OSError as e:
        raise UserMistake(
            f"notifications.receivers.email.caFile: cannot use {spec.ca_file}: {e}",
            hint="name a file with certificates in PEM",
        ) from e
