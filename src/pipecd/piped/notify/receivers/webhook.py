# SPDX-License-Identifier: Apache-2.0
"""Posts notification events as JSON to a webhook."""

from dataclasses import dataclass
from typing import Self

import httpx2

from pipecd.config.piped import signing_secret, webhook_signature
from pipecd.config.piped_notifications import WebhookSpec
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import to_json
from pipecd.piped.notify.event import NotificationEvent
from pipecd.piped.notify.outbox import Delivery
from pipecd.piped.notify.receivers.post import JSON, post
from pipecd.piped.notify.template import MessageRenderer
from pipecd.secrets.standardwebhook import signed_headers


@dataclass(frozen=True)
class WebhookReceiver:
    """Posts each event to one URL."""

    spec: WebhookSpec
    client: httpx2.AsyncClient
    now: Now = utc_now

    @classmethod
    def create(cls, spec: WebhookSpec, _: MessageRenderer, client: httpx2.AsyncClient) -> Self:
        """Raises if the configured secrets cannot be read; the renderer is not used."""
        webhook_signature(spec)
        signing_secret(spec)
        return cls(spec, client)

    async def send(self, delivery: Delivery) -> None:
        shared, secret = webhook_signature(self.spec), signing_secret(self.spec)
        body = payload(delivery.event)
        headers = {**JSON, self.spec.signature_key: shared}
        if secret:
            headers |= signed_headers(secret, delivery.id, to_unix(self.now()), body)
        await post(self.client, self.spec.url, body, headers=headers, secrets=(shared, secret))


def payload(event: NotificationEvent) -> bytes:
    """The event in upstream's format."""
    return f'{{"Type":{event.type:d},"Metadata":{to_json(event.metadata)}}}\n'.encode()
