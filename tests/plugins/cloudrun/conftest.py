# SPDX-License-Identifier: Apache-2.0
"""An application that is deployed to a Cloud Run of the tests."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pipecd.plugins.cloudrun import client
from pipecd.plugins.cloudrun.plugin import CloudRunPlugin
from pipecd.sdk import Backoff, PluginEntry, StartContext
from pipecd.sdk.polling import Polling
from pipecd.sdk.testing import MemoryHost
from plugins.cloudrun.testbed import Application
from servers.cloud_run import CloudRun


@pytest.fixture
def cloud_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudRun]:
    monkeypatch.setattr(client, "RETRY_BACKOFF", Backoff(first=0.001, longest=0.01))
    server = CloudRun(tmp_path)
    yield server
    server.close()


@pytest.fixture
async def application(cloud_run: CloudRun, tmp_path: Path) -> AsyncIterator[Application]:
    polling = Polling(within=2, backoff=Backoff(first=0.005, longest=0.02))
    plugin, host = CloudRunPlugin(polling), MemoryHost()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("cloudrun"), host, lifetime))
        yield Application(tmp_path, plugin, host, cloud_run)
