# SPDX-License-Identifier: Apache-2.0
"""A piped notifies every kind of receiver about its deployments, without secrets."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from pipecd.piped.notify.event import EventType
from pipecd.secrets import hybrid
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually
from servers.receivers import (
    DISCORD,
    SIGNATURE,
    SIGNING_SECRET,
    SLACK_HOOK,
    TEAMS,
    WEBHOOK,
    Mailbox,
    Receivers,
    notifications_config,
)
from servers.samples import CART
from servers.server import free_port

PLANTED = "planted-password-of-the-cart"
GOOD = f"{CART}  pipeline: {{stages: [{{name: WAIT, with: {{duration: 1ms}}}}]}}\n"
DEPLOYMENT_EVENTS = [
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_SUCCEEDED",
]  # fmt: skip


def leaking(public: bytes) -> str:
    """An application whose stage fails with the secret in its last line."""
    return f"""{CART}
  encryption:
    encryptedSecrets: {{password: "{hybrid.encrypt(public, PLANTED)}"}}
    decryptionTargets: [secret]
  pipeline:
    stages:
      - {{name: SCRIPT_RUN, with: {{run: "cat secret; exit 3"}}}}
  notification:
    mentions: [{{event: DEPLOYMENT_FAILED, slackusers: [U1], email: [ann@example.com]}}]
"""


@dataclass(frozen=True)
class NotifiedReceivers:
    """One receiver of every kind; the webhook shows the type of each event."""

    receivers: Receivers
    mailbox: Mailbox

    @property
    def event_types(self) -> list[str]:
        return [EventType(d.json["Type"]).name for d in self.receivers.at(WEBHOOK)]

    async def until(self, event_type: str) -> None:
        await eventually(lambda: event_type in self.event_types, 30)

    @property
    def configuration(self) -> str:
        return notifications_config(self.receivers, self.mailbox)


@pytest.fixture
def notified(receivers: Receivers, mailbox: Mailbox) -> NotifiedReceivers:
    return NotifiedReceivers(receivers, mailbox)


def deployment_events(event_types: list[str]) -> list[str]:
    return [t for t in event_types if t.startswith(("DEPLOYMENT", "STAGE"))]


async def test_every_receiver_is_notified_of_a_deployment_without_secrets(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    spec_dir: Path,
    notified: NotifiedReceivers,
    capfd: pytest.CaptureFixture[str],
) -> None:
    origin.commit({"cart/app.pipecd.yaml": GOOD})
    receivers, mailbox = notified.receivers, notified.mailbox
    private, public = (
        spec_dir / "vectors" / f"secret_{half}.pem" for half in ("private", "public")
    )
    files = f"privateKeyFile: {private}, publicKeyFile: {public}"
    more = f"{notified.configuration}secretManagement: {{type: KEY_PAIR, config: {{{files}}}}}\n"
    admin = {"admin_host": "127.0.0.1", "admin_port": free_port()}
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, more=more, **admin) as piped,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{admin['admin_port']}") as http,
    ):
        await piped.add_application("cart")
        await notified.until("DEPLOYMENT_SUCCEEDED")
        metrics = (await http.get("/metrics")).text
        assert deployment_events(notified.event_types) == DEPLOYMENT_EVENTS
        origin.commit(
            {
                "cart/app.pipecd.yaml": leaking(public.read_bytes()),
                "cart/secret": "{{ .encryptedSecrets.password }}",
            },
            "leak it",
        )
        await notified.until("DEPLOYMENT_FAILED")
        reported = await plane.cases.pipeds.get(piped.id, by=plane.admin)
    waiting = [line for line in metrics.splitlines() if "_notifications_waiting{" in line]
    assert len(waiting) == 5
    names = notified.event_types
    assert (names[0], names[-1]) == ("PIPED_STARTED", "PIPED_STOPPED")
    for path in (SLACK_HOOK, WEBHOOK, TEAMS, DISCORD):
        assert len(receivers.at(path)) == len(names), path
    assert len(mailbox.mails) == len(names)
    failed = names.index("DEPLOYMENT_FAILED")
    attachment = receivers.at(SLACK_HOOK)[failed].json["attachments"][0]
    assert attachment["title"] == 'Deployment for "cart" was failed'
    assert attachment["text"].endswith("The script exited with code 3: ******)")
    assert attachment["title_link"].startswith("http://127.0.0.1")
    assert any(field["value"] == "<@U1>" for field in attachment["fields"])
    assert "ann@example.com" in mailbox.mails[failed].readers
    out = capfd.readouterr()
    everything = b"".join(d.body for d in receivers.deliveries)
    everything += b"".join(m.content.as_bytes() for m in mailbox.mails)
    everything += f"{out.out}{out.err}{reported.config}".encode()
    for secret in (PLANTED, SIGNATURE, SIGNING_SECRET, "hook-secret", "url-secret"):
        assert secret.encode() not in everything, secret


async def test_hanging_receivers_delay_neither_deployments_nor_shutdown(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    notified: NotifiedReceivers,
) -> None:
    origin.commit({"cart/app.pipecd.yaml": GOOD})
    notified.receivers.hanging.update({SLACK_HOOK, TEAMS, DISCORD})
    notified.mailbox.is_hanging = True
    async with start_plane() as plane:
        async with whole_piped(plane, origin.remote, more=notified.configuration) as piped:
            await piped.add_application("cart")
            await notified.until("DEPLOYMENT_SUCCEEDED")
            ended = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - ended < 20
    assert deployment_events(notified.event_types) == DEPLOYMENT_EVENTS
    assert notified.event_types[-1] == "PIPED_STOPPED"
