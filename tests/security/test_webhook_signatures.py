# SPDX-License-Identifier: Apache-2.0
"""Only who has the secret of a project wakes its pipeds, and a delivery counts once."""

import base64
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import time

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases.projects import StaticAdmin
from servers.control_plane import ServedControlPlane, start_control_plane

REMOTE = "git@github.com:shop/site.git"
BODY = json.dumps(
    {"ref": "refs/heads/main", "repository": {"ssh_url": REMOTE, "full_name": "shop/site"}}
).encode()
GENERIC = json.dumps({"repository": REMOTE, "branch": "main"}).encode()


@dataclass(frozen=True)
class Sender:
    """What an attacker knows: not the secret of the project, but one of another project."""

    secret: str = field(repr=False)
    foreign: str = field(repr=False)


@pytest.fixture(scope="module")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedControlPlane]:
    async with start_control_plane(tmp_path_factory.mktemp("plane")) as running:
        piped = await running.register_piped()
        await piped.add_repository("site", REMOTE)
        yield running


async def secret_of(plane: ServedControlPlane, user: User) -> str:
    settings = await plane.cases.webhooks.settings(by=user)
    assert settings is not None
    assert settings.secret is not None
    return settings.secret


@pytest.fixture(scope="module")
async def sender(plane: ServedControlPlane) -> Sender:
    await plane.cases.projects.add("other", "", StaticAdmin("admin", "hello-other"))
    other = User("other", "admin", ("Admin",))
    for user in (plane.admin, other):
        await plane.cases.webhooks.rotate(by=user)
    return Sender(await secret_of(plane, plane.admin), await secret_of(plane, other))


@pytest.fixture
async def client(plane: ServedControlPlane) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}") as opened:
        yield opened


def digest(secret: str, body: bytes = BODY) -> str:
    return hmac.digest(secret.encode(), body, "sha256").hex()


def github(secret: str, body: bytes = BODY) -> dict[str, str]:
    return {"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={digest(secret, body)}"}


def standard(
    secret: str, *, body: bytes = GENERIC, id: str = "1", at: float = 0, version: str = "v1"
) -> dict[str, str]:
    sent_at = str(int(at or time()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.digest(key, f"{id}.{sent_at}.".encode() + body, "sha256")
    signature = f"{version},{base64.b64encode(signed).decode()}"
    return {"Webhook-Id": id, "Webhook-Timestamp": sent_at, "Webhook-Signature": signature}


Headers = Callable[[Sender], dict[str, str]]
# Headers of deliveries to the project, made without its secret or for another body.
ATTACKS_HEADERS: dict[str, Headers] = {
    "no signature": lambda _: {"X-GitHub-Event": "push"},
    "an empty signature": lambda _: {"X-Hub-Signature-256": ""},
    "a signature of nothing": lambda _: {"X-Hub-Signature-256": "sha256="},
    "an empty token": lambda _: {"X-Gitlab-Token": ""},
    "a wrong token": lambda _: {"X-Gitlab-Token": "secret"},
    "the beginning of the token": lambda s: {"X-Gitlab-Token": s.secret[:-1]},
    "the token and more": lambda s: {"X-Gitlab-Token": s.secret + "x"},
    "the token in capitals": lambda s: {"X-Gitlab-Token": s.secret.upper()},
    "the token of another project": lambda s: {"X-Gitlab-Token": s.foreign},
    "a signature with the empty secret": lambda _: github(""),
    "a signature with the secret of another project": lambda s: github(s.foreign),
    "a signature of another body": lambda s: github(s.secret, b"{}"),
    "a signature of the body and more": lambda s: github(s.secret, BODY + b"\n"),
    "a signature by SHA-1": lambda s: {
        "X-Hub-Signature": "sha1=" + hmac.digest(s.secret.encode(), BODY, "sha1").hex()
    },
    "a digest by SHA-1 under the name of SHA-256": lambda s: {
        "X-Hub-Signature-256": "sha256=" + hmac.digest(s.secret.encode(), BODY, "sha1").hex()
    },
    "a digest without the name of its algorithm": lambda s: {
        "X-Hub-Signature-256": digest(s.secret)
    },
    "a wrong signature before a right token": lambda s: {
        "X-Hub-Signature-256": f"sha256={'0' * 64}", "X-Gitlab-Token": s.secret,
    },
    "a wrong standard signature before a right one of GitHub": lambda s: {
        **github(s.secret), "Webhook-Signature": "v1,AAAA", "Webhook-Id": "1",
        "Webhook-Timestamp": str(int(time())),
    },
    "the ping of Bitbucket with a wrong signature": lambda _: {
        "X-Event-Key": "diagnostics:ping", "X-Hub-Signature": f"sha256={'0' * 64}",
    },
}  # fmt: skip


async def woken(plane: ServedControlPlane) -> object:
    settings = await plane.cases.webhooks.settings(by=plane.admin)
    assert settings is not None
    return settings.last


@pytest.mark.parametrize("headers", ATTACKS_HEADERS.values(), ids=ATTACKS_HEADERS)
async def test_a_delivery_without_the_secret_wakes_nobody(
    plane: ServedControlPlane, client: httpx2.AsyncClient, sender: Sender, headers: Headers
) -> None:
    before = await woken(plane)
    answer = await client.post("/webhooks/demo", content=BODY, headers=headers(sender))
    assert (answer.status_code, answer.json()) == (401, {"message": "invalid signature"})
    assert await woken(plane) == before


ATTACKS_STANDARD: dict[str, Headers] = {
    "six minutes old": lambda s: standard(s.secret, at=time() - 360),
    "six minutes ahead": lambda s: standard(s.secret, at=time() + 360),
    "with a time that is no number": lambda s: {
        **standard(s.secret), "Webhook-Timestamp": "now",
    },
    "with a time of 5,000 digits": lambda s: {
        **standard(s.secret), "Webhook-Timestamp": "9" * 5000,
    },
    "with a negative time": lambda s: {**standard(s.secret), "Webhook-Timestamp": "-1"},
    "with another id than was signed": lambda s: {**standard(s.secret), "Webhook-Id": "2"},
    "with another time than was signed": lambda s: {
        **standard(s.secret), "Webhook-Timestamp": str(int(time()) - 1),
    },
    "of another version": lambda s: standard(s.secret, version="v2"),
    "with the secret of another project": lambda s: standard(s.foreign),
    "of another body": lambda s: standard(s.secret, body=b"{}"),
    "without a signature": lambda s: {**standard(s.secret), "Webhook-Signature": ""},
    "with only a version": lambda s: {**standard(s.secret), "Webhook-Signature": "v1,"},
}  # fmt: skip


@pytest.mark.parametrize("headers", ATTACKS_STANDARD.values(), ids=ATTACKS_STANDARD)
async def test_a_standard_delivery_is_refused(
    plane: ServedControlPlane, client: httpx2.AsyncClient, sender: Sender, headers: Headers
) -> None:
    before = await woken(plane)
    answer = await client.post("/webhooks/demo", content=GENERIC, headers=headers(sender))
    assert (answer.status_code, answer.json()) == (401, {"message": "invalid signature"})
    assert await woken(plane) == before


@pytest.mark.parametrize("project", ["nowhere", "a" * 300, "..%2Fdemo", "demo%00"])
async def test_an_unknown_project_looks_like_a_wrong_secret(
    client: httpx2.AsyncClient, sender: Sender, project: str
) -> None:
    headers = github(sender.secret)
    answer = await client.post(f"/webhooks/{project}", content=BODY, headers=headers)
    assert answer.status_code in (401, 404)
    if answer.status_code == 401:
        assert answer.json() == {"message": "invalid signature"}


async def test_a_delivery_counts_once(client: httpx2.AsyncClient, sender: Sender) -> None:
    headers = standard(sender.secret, id="replayed")
    first = await client.post("/webhooks/demo", content=GENERIC, headers=headers)
    again = await client.post("/webhooks/demo", content=GENERIC, headers=headers)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == {"message": "already delivered"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param(lambda s: github(s.secret), BODY, id="GitHub"),
        pytest.param(
            lambda s: {"X-Gitlab-Token": s.secret, "X-Gitlab-Event": "Push Hook"},
            json.dumps(
                {
                    "object_kind": "push",
                    "ref": "refs/heads/main",
                    "project": {"git_ssh_url": REMOTE},
                }
            ).encode(),
            id="GitLab",
        ),
        pytest.param(
            lambda s: {"X-Gitea-Event": "push", "X-Gitea-Signature": digest(s.secret)},
            BODY,
            id="Gitea",
        ),
        pytest.param(lambda s: standard(s.secret, id="fresh"), GENERIC, id="Standard Webhooks"),
    ],
)
async def test_a_signed_delivery_is_accepted(
    client: httpx2.AsyncClient, sender: Sender, headers: Headers, body: bytes
) -> None:
    answer = await client.post("/webhooks/demo", content=body, headers=headers(sender))
    assert answer.status_code == 202
