# SPDX-License-Identifier: Apache-2.0
"""A webhook deploys a push before the next poll of the repository."""

import hmac
import json
import time
from typing import Any

import httpx2

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import RunPiped, StartControlPlane
from servers.git_http import GitHttp
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import WAITING_CART


async def send_webhook(plane: Any, remote: str) -> None:
    """Sends the webhook of a Git host after a push."""
    (secret,) = await plane.cases.webhooks.secrets_of("demo")
    body = json.dumps({"ref": "refs/heads/main", "repository": {"clone_url": remote}}).encode()
    digest = hmac.digest(secret.encode(), body, "sha256").hex()
    async with httpx2.AsyncClient() as client:
        answer = await client.post(
            f"http://{plane.address}/webhooks/demo",
            content=body,
            headers={"X-Gitea-Event": "push", "X-Gitea-Signature": digest},
        )
    assert answer.status_code == 202


async def test_a_webhook_deploys_before_the_next_poll(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    git_http: GitHttp,
) -> None:
    origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    remote = git_http.url("origin/.git")

    async def deployed(commit: str) -> bool:
        listed = await plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=plane.admin
        )
        return any(
            d.trigger.commit.hash == commit
            and DeploymentStatus(d.status) is DeploymentStatus.SUCCESS
            for d in listed.items
        )

    async with start_plane() as plane, whole_piped(plane, remote) as piped:
        await plane.cases.webhooks.rotate(by=plane.admin)
        await piped.add_application("cart")
        # From the first delivery on, this repository is polled only every half minute.
        took = 0.0
        for number in range(3):
            commit = origin.commit({"cart/x": str(number)})
            pushed = time.perf_counter()
            await send_webhook(plane, remote)
            await eventually(lambda c=commit: deployed(c), 20)
            took = time.perf_counter() - pushed
        before = len(git_http.requests)
        commit = origin.commit({"README": "nothing to deploy"})
        await send_webhook(plane, remote)
        await eventually(lambda: len(git_http.requests) > before)
    assert took < 5
