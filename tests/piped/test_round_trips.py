# SPDX-License-Identifier: Apache-2.0
"""One push costs no needless work: each file is parsed once, and nothing is fetched twice."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_piped
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.piped.source import configs
from servers.piped import piped_config
from servers.samples import CART

PIPELINE = f"""\
{CART}\
  pipeline:
    stages:
      - {{name: WAIT, with: {{duration: 1ms}}}}
      - {{name: WAIT, with: {{duration: 2ms}}}}
"""


@asynccontextmanager
async def piped(plane: Any, remote: str) -> AsyncGenerator[None]:
    """Runs a whole piped."""
    made = plane.registered
    text = piped_config(made.id, made.key, address=plane.address, remote=remote)
    config = read_piped(text, file="piped.yaml", catalog=load_catalog())
    settings = PipedSettings(config=config, insecure=True, workspace=plane.directory / "work")
    ready = asyncio.Event()
    task = asyncio.create_task(run_piped(settings, ready=ready.set))
    await ready.wait()
    yield
    task.cancel()
    await asyncio.wait({task})


async def test_a_push_parses_its_file_once_and_loads_its_deployment_from_the_cache(
    open_plane: Any, origin: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    read_application = configs.read_application

    def counting(text: bytes, **rest: Any) -> Any:
        parsed.append(text)
        return read_application(text, **rest)

    monkeypatch.setattr(configs, "read_application", counting)
    origin.commit({"cart/app.pipecd.yaml": PIPELINE})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id = await plane.add_application("cart")

        async def is_deployed(commit: str) -> bool:
            last = (await plane.application(id)).most_recently_successful_deployment
            return last.trigger.commit.hash == commit

        async with piped(plane, origin.remote):
            await eventually(lambda: is_deployed(origin.git("rev-parse", "HEAD")), 20)
            assert parsed == [PIPELINE.encode()]
            for call in ("ListNotCompletedDeployments", "GetDeployment"):
                plane.gate.refusals[call] = grpc.StatusCode.UNAVAILABLE
            changed = f"{PIPELINE}  description: changed\n"
            commit = origin.commit({"cart/app.pipecd.yaml": changed})
            await eventually(lambda: is_deployed(commit), 20)
            assert parsed == [PIPELINE.encode(), changed.encode()]
            commit = origin.commit({"cart/other": "the configuration stays the same"})
            await eventually(lambda: is_deployed(commit), 20)
            assert len(parsed) == 2
        assert plane.gate.count("CreateDeployment") == 3
        assert plane.gate.count("GetDeployment") == 0
