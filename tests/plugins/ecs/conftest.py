# SPDX-License-Identifier: Apache-2.0
"""An application that the plugin deploys to AWS on loopback."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pipecd.plugins.ecs.plugin import EcsPlugin
from pipecd.sdk import Backoff, PluginEntry, StartContext
from pipecd.sdk.aws import Polling
from pipecd.sdk.testing import MemoryHost
from plugins.ecs.testbed import Application, Balancer
from servers.amazon import Amazon


@pytest.fixture
async def application(amazon: Amazon, tmp_path: Path) -> AsyncIterator[Application]:
    plugin, host = EcsPlugin(), MemoryHost()
    plugin.polling = Polling(within=0.5, backoff=Backoff(first=0.01, longest=0.1))
    amazon.client("ecs").create_cluster(clusterName="prod")
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("ecs"), host, lifetime))
        yield Application(tmp_path, plugin, host, amazon, input={"accessType": "SERVICE_DISCOVERY"})


@pytest.fixture
def balancer(amazon: Amazon, application: Application) -> Balancer:
    """A load balancer for the application; its listeners are created by the test."""
    balancer = Balancer(amazon).create()
    application.input = balancer.input
    return balancer
