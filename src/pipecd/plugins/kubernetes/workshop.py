# SPDX-License-Identifier: Apache-2.0
"""What a plugin has from its start to its end: rendered manifests and watched clusters."""

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipecd.plugins.kubernetes.live.lookout import Lookouts
from pipecd.plugins.kubernetes.render.load import Loader
from pipecd.plugins.kubernetes.target import ChartSources
from pipecd.sdk import StartContext


@dataclass(frozen=True)
class Workshop:
    """Renders manifests and looks at clusters; both are let go at the end of the plugin."""

    loader: Loader
    lookouts: Lookouts


def open_workshop(start: StartContext) -> Workshop:
    """Opens what the stages and the questions of a plugin share."""
    directory = start.lifetime.enter_context(tempfile.TemporaryDirectory(prefix="pipecd-"))
    lookouts = Lookouts(start.host.live_state_changed)
    watching = asyncio.create_task(lookouts.run(), name="watches of clusters")
    start.lifetime.push_async_callback(_ended, watching)
    charts = start.plugin.settings(ChartSources)
    return Workshop(Loader(charts, Path(directory), start.host.git_variables), lookouts)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
