# SPDX-License-Identifier: Apache-2.0
"""A whole piped tells five kinds of receivers what it does, and none of them a secret."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.piped.notify.event import EventType
from pipecd.secrets import hybrid
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.receivers import (
    DISCORD,
    SIGNATURE,
    SIGNING_SECRET,
    SLACK_HOOK,
    TEAMS,
    WEBHOOK,
    Mailbox,
    Receivers,
    five_receivers,
)
from servers.samples import CART
from servers.server import free_port

PLANTED = "planted-password-of-the-cart"
GOOD = f"{CART}  pipeline: {{stages: [{{name: WAIT, with: {{duration: 1ms}}}}]}}\n"
TOLD = [
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_SUCCEEDED",
]  # fmt: skip


def leaking(public: bytes) -> str:
    """An application whose stage fails with the secret as its last word."""
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


@dataclass
class Ears:
    """Those who are told."""

    receivers: Receivers
    mailbox: Mailbox
    eventually: Any

    @property
    def names(self) -> list[str]:
        """What the program among them heard."""
        return [EventType(d.json["Type"]).name for d in self.receivers.at(WEBHOOK)]

    async def hear(self, name: str) -> None:
        await self.eventually(lambda: name in self.names, 30)

    @property
    def configuration(self) -> str:
        return five_receivers(self.receivers, self.mailbox)


@pytest.fixture
def ears(receivers: Receivers, mailbox: Mailbox, eventually: Any) -> Ears:
    return Ears(receivers, mailbox, eventually)


def about_deployments(names: list[str]) -> list[str]:
    return [n for n in names if n.startswith(("DEPLOYMENT", "STAGE"))]


async def test_a_deployment_reaches_five_receivers_and_a_secret_none(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    spec_dir: Path,
    ears: Ears,
    capfd: pytest.CaptureFixture[str],
) -> None:
    origin.commit({"cart/app.pipecd.yaml": GOOD})
    receivers, mailbox = ears.receivers, ears.mailbox
    private, public = (
        spec_dir / "vectors" / f"secret_{half}.pem" for half in ("private", "public")
    )
    files = f"privateKeyFile: {private}, publicKeyFile: {public}"
    more = f"{ears.configuration}secretManagement: {{type: KEY_PAIR, config: {{{files}}}}}\n"
    place = {"admin_host": "127.0.0.1", "admin_port": free_port()}
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, more=more, **place) as piped,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{place['admin_port']}") as http,
    ):
        await piped.add_application("cart")
        await ears.hear("DEPLOYMENT_SUCCEEDED")
        counted = (await http.get("/metrics")).text
        assert about_deployments(ears.names) == TOLD
        origin.commit(
            {
                "cart/app.pipecd.yaml": leaking(public.read_bytes()),
                "cart/secret": "{{ .encryptedSecrets.password }}",
            },
            "leak it",
        )
        await ears.hear("DEPLOYMENT_FAILED")
        reported = await plane.cases.pipeds.get(piped.id, by=plane.admin)
    waiting = [line for line in counted.splitlines() if "_notifications_waiting{" in line]
    assert len(waiting) == 5
    names = ears.names
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


async def test_receivers_that_hang_hold_up_no_deployment_and_no_end(
    start_plane: StartControlPlane, whole_piped: RunPiped, origin: Origin, ears: Ears
) -> None:
    origin.commit({"cart/app.pipecd.yaml": GOOD})
    ears.receivers.hanging.update({SLACK_HOOK, TEAMS, DISCORD})
    ears.mailbox.is_hanging = True
    async with start_plane() as plane:
        async with whole_piped(plane, origin.remote, more=ears.configuration) as piped:
            await piped.add_application("cart")
            await ears.hear("DEPLOYMENT_SUCCEEDED")
            ended = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - ended < 20
    assert about_deployments(ears.names) == TOLD
    assert ears.names[-1] == "PIPED_STOPPED"
