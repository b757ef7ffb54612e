# SPDX-License-Identifier: Apache-2.0
"""A service with a supervisor of its own, which ends with the test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pipecd.plugins.process.plugin import ProcessPlugin
from pipecd.sdk import StartContext
from plugins.process.testbed import Service
from servers.server import free_ports


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(tmp_path, ProcessPlugin(), free_ports(1)[0])
    async with AsyncExitStack() as lifetime:
        await made.plugin.prepare(StartContext(made.entry, made.host, lifetime))
        try:
            yield made
        finally:
            # Before the plugin ends, which would start a supervisor that was killed again.
            await lifetime.aclose()
            await made.client.shut_down()
