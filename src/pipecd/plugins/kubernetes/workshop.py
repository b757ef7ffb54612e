# SPDX-License-Identifier: Apache-2.0
"""What a plugin has from its start to its end: manifests, watched clusters and figures."""

import asyncio
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipecd.plugins.kubernetes.figures import Figures
from pipecd.plugins.kubernetes.live.lookout import Lookouts
from pipecd.plugins.kubernetes.render.load import Loader
from pipecd.plugins.kubernetes.target import ChartSources
from pipecd.sdk import StartContext


@dataclass(frozen=True)
class Workshop:
    """Renders manifests, looks at clusters and counts; it ends with the plugin."""

    loader: Loader
    lookouts: Lookouts
    figures: Figures


def open_workshop(start: StartContext) -> Workshop:
    """Opens what the stages and the questions of a plugin share."""
    directory = start.lifetime.enter_context(tempfile.TemporaryDirectory(prefix="pipecd-"))
    figures = Figures(start)
    lookouts = Lookouts(start.host.live_state_changed, figures)
    watching = asyncio.create_task(lookouts.run(), name="watches of clusters")
    start.lifetime.push_async_callback(_ended, watching)
    charts = start.plugin.settings(ChartSources)
    loader = Loader(charts, Path(directory), start.host.git_variables, ended=figures.ran)
    return Workshop(loader, lookouts, figures)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
