# SPDX-License-Identifier: Apache-2.0
"""A chain of three applications over two pipeds runs block by block."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecd.controlplane.stores.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment

FOLLOWS = "  trigger:\n    onCommit: {disabled: true}\n    onChain: {disabled: false}\n"
CHAIN = "  postSync: {chain: {applications: [{name: shop}, {name: web}]}}\n"


def application(name: str, script: str, more: str) -> str:
    return f"""\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {name}
{more}  pipeline:
    stages:
      - {{name: SCRIPT_RUN, with: {{run: {script!r}}}}}
"""


@dataclass(frozen=True)
class Stage:
    """A control plane with three applications that two pipeds share."""

    plane: Any
    trace: Path

    async def chain(self) -> DeploymentChain | None:
        found = await self.plane.running.cases.chains.listed(by=self.plane.admin)
        return found.items[0] if found.items else None

    async def ended(self) -> DeploymentChain | None:
        chain = await self.chain()
        return chain if chain and chain.completed_at else None

    async def deployments(self) -> dict[str, Deployment]:
        listed = await self.plane.running.cases.deployments.listed(
            DeploymentFilter(project="demo"), by=self.plane.admin
        )
        return {d.application_name: d for d in listed.items}


@asynccontextmanager
async def set_up(
    start_plane: Any, whole_piped: Any, origin: Any, directory: Path, *, shop: str
) -> AsyncGenerator[Stage]:
    trace = directory / "trace"
    origin.commit(
        {
            "cart/app.pipecd.yaml": application("cart", f"echo cart >> {trace}", CHAIN),
            "shop/app.pipecd.yaml": application("shop", f"echo shop >> {trace}; {shop}", FOLLOWS),
            "web/app.pipecd.yaml": application("web", f"echo web >> {trace}", FOLLOWS),
        }
    )
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, "a") as a,
        whole_piped(plane, origin.remote, "b") as b,
    ):
        # The first application comes last: its deployment looks for the others.
        await a.add_application("web")
        await b.add_application("shop")
        await a.add_application("cart")
        yield Stage(plane, trace)


async def test_each_block_waits_for_the_one_before_it(
    start_plane: Any, whole_piped: Any, origin: Any, eventually: Any, tmp_path: Path
) -> None:
    async with set_up(start_plane, whole_piped, origin, tmp_path, shop="sleep 0.5") as stage:
        # All of them are there at once; those of later blocks wait for their turn.
        await eventually(stage.trace.exists, 20)
        chain = await eventually(stage.ended, 30)
        made = await stage.deployments()
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_SUCCESS
    assert stage.trace.read_text().split() == ["cart", "shop", "web"]
    assert {d.deployment_chain_id for d in made.values()} == {chain.id}
    assert [made[n].deployment_chain_block_index for n in ("cart", "shop", "web")] == [0, 1, 2]
    assert made["cart"].piped_id == made["web"].piped_id != made["shop"].piped_id


async def test_a_block_that_fails_keeps_the_next_from_beginning(
    start_plane: Any, whole_piped: Any, origin: Any, eventually: Any, tmp_path: Path
) -> None:
    async with set_up(start_plane, whole_piped, origin, tmp_path, shop="exit 3") as stage:
        chain = await eventually(stage.ended, 30)

        async def web_ended() -> Deployment | None:
            web = (await stage.deployments()).get("web")
            return web if web and DeploymentStatus(web.status).is_completed else None

        web = await eventually(web_ended, 20)
        shop = (await stage.deployments())["shop"]
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_FAILURE
    assert DeploymentStatus(shop.status) is DeploymentStatus.FAILURE
    assert DeploymentStatus(web.status) is DeploymentStatus.CANCELLED
    assert "previous block" in web.status_reason.lower()
    assert "web" not in stage.trace.read_text()
