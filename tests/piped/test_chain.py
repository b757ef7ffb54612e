# SPDX-License-Identifier: Apache-2.0
"""A chain of three applications over two pipeds runs block by block."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.control_plane import RunPiped, ServedControlPlane, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually

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
class ChainScene:
    """A control plane, and the file to which the scripts of its applications append."""

    plane: ServedControlPlane
    trace: Path

    async def completed_chain(self) -> DeploymentChain | None:
        chains = (await self.plane.cases.chains.list(by=self.plane.admin)).items
        return next((chain for chain in chains if chain.completed_at), None)

    async def deployments(self) -> dict[str, Deployment]:
        """The deployments by the name of their application."""
        return {d.application_name: d for d in await self.plane.deployments()}


@asynccontextmanager
async def start_chain(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    directory: Path,
    *,
    shop: str,
) -> AsyncGenerator[ChainScene]:
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
        # The first application comes last, because its deployment selects the others.
        await a.add_application("web")
        await b.add_application("shop")
        await a.add_application("cart")
        yield ChainScene(plane, trace)


async def test_each_block_waits_for_the_one_before_it(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    async with start_chain(start_plane, whole_piped, origin, tmp_path, shop="sleep 0.5") as scene:
        # All deployments are created at once; those of later blocks wait.
        await eventually(scene.trace.exists, 20)
        chain = await eventually(scene.completed_chain, 30)
        deployments = await scene.deployments()
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_SUCCESS
    assert scene.trace.read_text().split() == ["cart", "shop", "web"]
    assert {d.deployment_chain_id for d in deployments.values()} == {chain.id}
    assert [deployments[n].deployment_chain_block_index for n in ("cart", "shop", "web")] == [
        0,
        1,
        2,
    ]
    assert (
        deployments["cart"].piped_id == deployments["web"].piped_id != deployments["shop"].piped_id
    )


async def test_a_failed_block_cancels_the_next_blocks(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    async with start_chain(start_plane, whole_piped, origin, tmp_path, shop="exit 3") as scene:
        chain = await eventually(scene.completed_chain, 30)

        async def web_ended() -> Deployment | None:
            web = (await scene.deployments()).get("web")
            return web if web and DeploymentStatus(web.status).is_completed else None

        web = await eventually(web_ended, 20)
        shop = (await scene.deployments())["shop"]
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_FAILURE
    assert DeploymentStatus(shop.status) is DeploymentStatus.FAILURE
    assert DeploymentStatus(web.status) is DeploymentStatus.CANCELLED
    assert "previous block" in web.status_reason.lower()
    assert "web" not in scene.trace.read_text()


async def test_blocks_are_chosen_by_label_and_kind_and_labels_narrow(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    chain = "  postSync: {chain: {applications: [{labels: {tier: back}}, {kind: TERRAFORM}]}}\n"
    names = ("cart", "stock", "prices", "web", "network")
    origin.commit(
        {
            f"{name}/app.pipecd.yaml": application(
                name,
                f"echo {name} >> {trace}",
                _labels(LABELS.get(name, {})) + (chain if name == "cart" else FOLLOWS),
            )
            for name in names
        }
    )
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, "a") as a,
        whole_piped(plane, origin.remote, "b") as b,
    ):
        scene = ChainScene(plane, trace)
        for name, piped in (("stock", a), ("prices", b), ("web", b), ("network", b)):
            kind: dict[str, Any] = {"kind": ApplicationKind.TERRAFORM} if name == "network" else {}
            labels = LABELS.get(name, {})
            await piped.add_application(name, platform_provider="p", labels=labels, **kind)
        await a.add_application("cart")
        chain = await eventually(scene.completed_chain, 40)
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_SUCCESS
    blocks = [{n.application_ref.application_name for n in block.nodes} for block in chain.blocks]
    assert blocks == [{"cart"}, {"stock", "prices"}, {"network"}]
    lines = trace.read_text().split()
    assert (lines[0], set(lines[1:3]), lines[3:]) == ("cart", {"stock", "prices"}, ["network"])


LABELS = {
    "stock": {"tier": "back", "team": "x"},
    "prices": {"tier": "back"},
    "web": {"tier": "front"},
}


def _labels(labels: dict[str, str]) -> str:
    return f"  labels: {labels}\n" if labels else ""


async def test_an_application_of_several_blocks_is_deployed_in_each_of_them(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    chain = f"  postSync: {{chain: {{applications: [{', '.join(['{name: shop}'] * 5)}]}}}}\n"
    origin.commit(
        {
            "cart/app.pipecd.yaml": application("cart", f"echo cart >> {trace}", chain),
            "shop/app.pipecd.yaml": application("shop", f"echo shop >> {trace}", FOLLOWS),
        }
    )
    async with start_plane() as plane, whole_piped(plane, origin.remote, "a") as piped:
        scene = ChainScene(plane, trace)
        await piped.add_application("shop")
        await piped.add_application("cart")
        completed = await eventually(scene.completed_chain, 40)
    assert completed.status == chain_pb2.DEPLOYMENT_CHAIN_SUCCESS
    assert trace.read_text().split() == ["cart", *["shop"] * 5]


async def test_all_applications_deploy_the_commit_that_started_the_chain(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    """The second piped starts after another commit was pushed."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.02; done"
    first = origin.commit(
        {
            "cart/app.pipecd.yaml": application("cart", wait, CHAIN),
            "shop/app.pipecd.yaml": application("shop", f"echo first >> {trace}", FOLLOWS),
            "web/app.pipecd.yaml": application("web", f"echo first >> {trace}", FOLLOWS),
        }
    )
    async with start_plane() as plane:
        scene = ChainScene(plane, trace)
        async with whole_piped(plane, origin.remote, "a") as a:
            async with whole_piped(plane, origin.remote, "b") as b:
                await b.add_application("shop")
                await a.add_application("web")
            # The second piped is stopped now, and its commands wait.
            await a.add_application("cart")

            async def is_started() -> bool:
                return "cart" in await scene.deployments()

            await eventually(is_started, 20)
            second = origin.commit(
                {
                    "shop/app.pipecd.yaml": application("shop", f"echo x >> {trace}", FOLLOWS),
                    "web/app.pipecd.yaml": application("web", f"echo x >> {trace}", FOLLOWS),
                }
            )
            gate.touch()
            async with b.run(origin.remote):
                chain = await eventually(scene.completed_chain, 40)
            deployments = await scene.deployments()
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_SUCCESS
    assert {deployments[name].trigger.commit.hash for name in ("cart", "shop", "web")} == {first}
    assert first != second
    assert trace.read_text().split() == ["first", "first"]


async def test_an_application_of_a_chain_may_start_its_own_chain_and_waits_for_its_block(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    """The chain of cart contains shop, and the chain of shop contains stock and again cart."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.02; done; "
    own = FOLLOWS + "  postSync: {chain: {applications: [{name: stock}, {name: cart}]}}\n"
    follows = "  trigger: {onChain: {disabled: false}}\n"
    origin.commit(
        {
            "cart/app.pipecd.yaml": application(
                "cart", f"{wait}echo cart >> {trace}", follows + CHAIN
            ),
            "shop/app.pipecd.yaml": application("shop", f"echo shop >> {trace}", own),
            "web/app.pipecd.yaml": application("web", f"echo web >> {trace}", FOLLOWS),
            "stock/app.pipecd.yaml": application("stock", f"echo stock >> {trace}", FOLLOWS),
        }
    )
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, "a") as a,
        whole_piped(plane, origin.remote, "b") as b,
    ):
        scene = ChainScene(plane, trace)
        for name, piped in (("web", a), ("shop", b), ("stock", b), ("cart", a)):
            await piped.add_application(name)

        async def all_created() -> bool:
            return (await scene.deployments()).keys() == {"cart", "shop", "web", "stock"}

        await eventually(all_created, 20)
        shop = (await scene.deployments())["shop"]
        assert shop.status == DeploymentStatus.PENDING
        gate.touch()

        async def both_completed() -> list[DeploymentChain] | None:
            chains = (await plane.cases.chains.list(by=plane.admin)).items
            return (
                list(chains) if len(chains) == 2 and all(c.completed_at for c in chains) else None
            )

        chains = await eventually(both_completed, 40)
    assert {chain.status for chain in chains} == {chain_pb2.DEPLOYMENT_CHAIN_SUCCESS}
    lines = trace.read_text().split()
    assert (lines[:2], sorted(lines[2:])) == (["cart", "shop"], ["stock", "web"])
    shown = {
        node.deployment_ref.deployment_id
        for chain in chains
        for b in chain.blocks
        for node in b.nodes
    }
    assert shop.id in shown


async def test_cancelling_the_first_deployment_cancels_the_chain(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    origin.commit(
        {
            "cart/app.pipecd.yaml": application("cart", "sleep 60", CHAIN),
            "shop/app.pipecd.yaml": application("shop", f"echo shop >> {trace}", FOLLOWS),
            "web/app.pipecd.yaml": application("web", f"echo web >> {trace}", FOLLOWS),
        }
    )
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, "a") as a,
        whole_piped(plane, origin.remote, "b") as b,
    ):
        scene = ChainScene(plane, trace)
        await b.add_application("shop")
        await a.add_application("web")
        await a.add_application("cart")

        async def all_created() -> bool:
            deployments = await scene.deployments()
            running = (
                deployments.get("cart") and deployments["cart"].status == DeploymentStatus.RUNNING
            )
            return bool(running and deployments.keys() == {"cart", "shop", "web"})

        await eventually(all_created, 20)
        cart = (await scene.deployments())["cart"]
        await plane.cases.deployments.cancel(cart.id, False, False, by=plane.admin)
        chain = await eventually(scene.completed_chain, 20)

        async def all_completed() -> bool:
            deployments = await scene.deployments()
            return all(DeploymentStatus(d.status).is_completed for d in deployments.values())

        await eventually(all_completed, 20)
        deployments = await scene.deployments()
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_CANCELLED
    assert {d.status for d in deployments.values()} == {DeploymentStatus.CANCELLED}
    assert not trace.exists()
