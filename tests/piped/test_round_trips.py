# SPDX-License-Identifier: Apache-2.0
"""The cost of one push: each file is parsed once, and no object is fetched twice."""

from typing import Any

import grpc
import pytest

from pipecd.piped.source import configs
from servers.control_plane import OpenControlPlane
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART

PIPELINE = f"""\
{CART}\
  pipeline:
    stages:
      - {{name: WAIT, with: {{duration: 1ms}}}}
      - {{name: WAIT, with: {{duration: 2ms}}}}
"""


async def test_a_push_parses_its_file_once_and_loads_its_deployment_from_the_cache(
    open_plane: OpenControlPlane, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    read_application = configs.read_application

    def counting(text: bytes, **rest: Any) -> Any:
        parsed.append(text)
        return read_application(text, **rest)

    monkeypatch.setattr(configs, "read_application", counting)
    origin.commit({"cart/app.pipecd.yaml": PIPELINE})
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        id = await plane.piped.add_application("cart")

        async def is_deployed(commit: str) -> bool:
            last = (await plane.application(id)).most_recently_successful_deployment
            return last.trigger.commit.hash == commit

        async with plane.piped.run(origin.remote):
            await eventually(lambda: is_deployed(origin.git("rev-parse", "HEAD")), 20)
            assert parsed == [PIPELINE.encode()]
            for call in ("ListDeploymentsInOrder", "GetDeployment"):
                plane.gate.refusals[call] = grpc.StatusCode.UNAVAILABLE
            changed = f"{PIPELINE}  description: changed\n"
            commit = origin.commit({"cart/app.pipecd.yaml": changed})
            await eventually(lambda: is_deployed(commit), 20)
            assert parsed == [PIPELINE.encode(), changed.encode()]
            commit = origin.commit({"cart/other": "the configuration stays the same"})
            await eventually(lambda: is_deployed(commit), 20)
            assert len(parsed) == 2
        assert plane.gate.count("CreateDeploymentInOrder") == 3
        assert plane.gate.count("GetDeployment") == 0
