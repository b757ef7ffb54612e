# SPDX-License-Identifier: Apache-2.0
"""An application on a real cluster."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pipecd.plugins.kubernetes.plugin import KubernetesPlugin
from pipecd.sdk import PluginEntry, StartContext
from pipecd.sdk.testing import MemoryHost
from plugins.kubernetes.bed import Application
from servers.kubernetes import Kubernetes


@pytest.fixture
async def application(
    kubernetes: Kubernetes, namespace: str, tmp_path: Path
) -> AsyncIterator[Application]:
    plugin = KubernetesPlugin()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("kubernetes"), MemoryHost(), lifetime))
        yield Application(kubernetes, namespace, tmp_path, plugin)
