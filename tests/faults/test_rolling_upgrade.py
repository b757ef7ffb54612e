# SPDX-License-Identifier: Apache-2.0
"""Replicas of the control plane are replaced one after the other while a piped deploys."""

from collections import Counter

import httpx2
import pytest

from faults.conftest import OpenInstallation
from faults.installation import FaultyInstallation
from pipecd.model.deployment import DeploymentStatus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NAMES = ("cart", "shop", "mail")


async def is_ready(installed: FaultyInstallation, replica: int) -> bool:
    async with httpx2.AsyncClient() as http:
        try:
            url = f"http://127.0.0.1:{installed.ports[replica]['admin']}/readyz"
            return (await http.get(url)).status_code == 200
        except httpx2.HTTPError:
            return False


async def test_no_deployment_fails_while_replicas_are_replaced_one_after_the_other(
    open_replicas: OpenInstallation,
) -> None:
    async with open_replicas(*NAMES) as installed:
        piped = await installed.start_piped()
        # It runs from before the first replica is stopped until after the last one is back.
        longest = installed.push("cart", seconds=20)
        await installed.eventually(lambda: installed.running(longest))
        for replaced, other in ((0, 1), (1, 0)):
            during = installed.push("shop", seconds=3)
            await installed.eventually(lambda at=other, of=during: installed.running(of, at))
            await installed.replicas[replaced].stop()
            assert await installed.replicas[replaced].wait() == 0
            alone = installed.push("mail")
            for commit in (during, alone):
                await installed.eventually(lambda at=other, of=commit: installed.completed(of, at))
            await installed.start_replica(replaced)
            await installed.eventually(lambda at=replaced: is_ready(installed, at))
        await installed.eventually(lambda: installed.completed(longest))
        await installed.eventually(installed.all_completed)
        deployments = await installed.deployments()
        assert Counter(d.status for d in deployments) == {DeploymentStatus.SUCCESS: 5}
        assert Counter(Counter(run.deployment for run in installed.runs()).values()) == {1: 5}
        assert piped.is_running
        assert len(piped.starts) == 1
