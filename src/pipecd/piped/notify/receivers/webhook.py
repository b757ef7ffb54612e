# SPDX-License-Identifier: Apache-2.0
"""A program that takes notices as JSON."""

from dataclasses import dataclass

import httpx2

from pipecd.config.piped.credential import signing_secret, webhook_signature
from pipecd.config.piped.notification import WebhookSpec
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import to_json
from pipecd.piped.notify.notice import Notice
from pipecd.piped.notify.outbox import Letter
from pipecd.piped.notify.receivers.post import JSON, post
from pipecd.secrets.standardwebhook import signed_headers


@dataclass(frozen=True)
class WebhookReceiver:
    """Posts each notice to one address."""

    spec: WebhookSpec
    client: httpx2.AsyncClient
    now: Now = utc_now

    async def send(self, letter: Letter) -> None:
        shared, secret = webhook_signature(self.spec), signing_secret(self.spec)
        body = payload(letter.notice)
        headers = {**JSON, self.spec.signature_key: shared}
        if secret:
            headers |= signed_headers(secret, letter.id, to_unix(self.now()), body)
        await post(self.client, self.spec.url, body, headers=headers, secrets=(shared, secret))


def payload(notice: Notice) -> bytes:
    """The notice in the form that upstream's receivers know."""
    return f'{{"Type":{notice.kind:d},"Metadata":{to_json(notice.facts)}}}\n'.encode()
