# SPDX-License-Identifier: Apache-2.0
"""The receiver that a configuration describes."""

import httpx2

from pipecd.config.piped.credential import (
    hook_url,
    mail_password,
    signing_secret,
    slack_token,
    webhook_signature,
)
from pipecd.config.piped.notification import ReceiverSpec
from pipecd.piped.notify.message import Console
from pipecd.piped.notify.outbox import Receiver
from pipecd.piped.notify.receivers.discord import DiscordReceiver
from pipecd.piped.notify.receivers.mail import MailReceiver, tls_of
from pipecd.piped.notify.receivers.slack import SlackReceiver
from pipecd.piped.notify.receivers.teams import TeamsReceiver
from pipecd.piped.notify.receivers.webhook import WebhookReceiver
from pipecd.piped.notify.template import check
from pipecd.piped.notify.wording import Wording


def choose(spec: ReceiverSpec, console: Console, client: httpx2.AsyncClient) -> Receiver | None:
    """The receiver, or nothing where none is described; a secret that is missing is told now."""
    check(spec.templates, of=f"receiver {spec.name}")
    wording = Wording(console, spec.templates)
    if spec.slack is not None:
        slack_token(spec.slack)
        return SlackReceiver(spec.slack, wording, client)
    if spec.webhook is not None:
        webhook_signature(spec.webhook)
        signing_secret(spec.webhook)
        return WebhookReceiver(spec.webhook, client)
    if spec.teams is not None:
        hook_url(spec.teams)
        return TeamsReceiver(spec.teams, wording, client)
    if spec.discord is not None:
        hook_url(spec.discord)
        return DiscordReceiver(spec.discord, wording, client)
    if spec.email is not None:
        mail_password(spec.email)
        return MailReceiver(spec.email, wording, tls_of(spec.email))
    return None
