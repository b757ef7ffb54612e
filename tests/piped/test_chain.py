# SPDX-License-Identifier: Apache-2.0
"""A chain of three applications over two pipeds runs block by block."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import chain_pb2
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.control_plane import RunPiped, StartControlPlane
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
class Stage:
    """A control plane with three applications that two pipeds share."""

    plane: Any
    trace: Path

    async def chain(self) -> DeploymentChain | None:
        found = await self.plane.cases.chains.list(by=self.plane.admin)
        return found.items[0] if found.items else None

    async def ended(self) -> DeploymentChain | None:
        chain = await self.chain()
        return chain if chain and chain.completed_at else None

    async def deployments(self) -> dict[str, Deployment]:
        listed = await self.plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=self.plane.admin
        )
        return {d.application_name: d for d in listed.items}


@asynccontextmanager
async def set_up(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    directory: Path,
    *,
    shop: str,
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
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
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
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
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
        stage = Stage(plane, trace)
        for name, piped in (("stock", a), ("prices", b), ("web", b), ("network", b)):
            kind: dict[str, Any] = {"kind": ApplicationKind.TERRAFORM} if name == "network" else {}
            labels = LABELS.get(name, {})
            await piped.add_application(name, platform_provider="p", labels=labels, **kind)
        await a.add_application("cart")
        chain = await eventually(stage.ended, 40)
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_SUCCESS
    blocks = [{n.application_ref.application_name for n in block.nodes} for block in chain.blocks]
    assert blocks == [{"cart"}, {"stock", "prices"}, {"network"}]
    said = trace.read_text().split()
    assert (said[0], set(said[1:3]), said[3:]) == ("cart", {"stock", "prices"}, ["network"])


LABELS = {
    "stock": {"tier": "back", "team": "x"},
    "prices": {"tier": "back"},
    "web": {"tier": "front"},
}


def _labels(labels: dict[str, str]) -> str:
    return f"  labels: {labels}\n" if labels else ""


async def test_those_who_follow_deploy_the_commit_that_the_chain_began_with(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    """The second piped comes only after another commit was pushed."""
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
        stage = Stage(plane, trace)
        async with whole_piped(plane, origin.remote, "a") as a:
            async with whole_piped(plane, origin.remote, "b") as b:
                await b.add_application("shop")
                await a.add_application("web")
            # The second piped is away now, and what it is asked for waits for it.
            await a.add_application("cart")

            async def begun() -> bool:
                return "cart" in await stage.deployments()

            await eventually(begun, 20)
            second = origin.commit(
                {
                    "shop/app.pipecd.yaml": application("shop", f"echo x >> {trace}", FOLLOWS),
                    "web/app.pipecd.yaml": application("web", f"echo x >> {trace}", FOLLOWS),
                }
            )
            gate.touch()
            async with b.run(origin.remote):
                chain = await eventually(stage.ended, 40)
            made = await stage.deployments()
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_SUCCESS
    assert {made[name].trigger.commit.hash for name in ("cart", "shop", "web")} == {first}
    assert first != second
    assert trace.read_text().split() == ["first", "first"]


async def test_who_follows_may_begin_a_chain_of_its_own_and_waits_for_its_turn_all_the_same(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    """The shop follows the cart and is followed by the stock, and again by the cart."""
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
        stage = Stage(plane, trace)
        for name, piped in (("web", a), ("shop", b), ("stock", b), ("cart", a)):
            await piped.add_application(name)

        async def all_are_there() -> bool:
            return (await stage.deployments()).keys() == {"cart", "shop", "web", "stock"}

        await eventually(all_are_there, 20)
        shop = (await stage.deployments())["shop"]
        assert shop.status == DeploymentStatus.PENDING
        gate.touch()

        async def both_ended() -> list[DeploymentChain] | None:
            chains = (await plane.cases.chains.list(by=plane.admin)).items
            return (
                list(chains) if len(chains) == 2 and all(c.completed_at for c in chains) else None
            )

        chains = await eventually(both_ended, 40)
    assert {chain.status for chain in chains} == {chain_pb2.DEPLOYMENT_CHAIN_SUCCESS}
    said = trace.read_text().split()
    assert (said[:2], sorted(said[2:])) == (["cart", "shop"], ["stock", "web"])
    shown = {
        node.deployment_ref.deployment_id
        for chain in chains
        for b in chain.blocks
        for node in b.nodes
    }
    assert shop.id in shown


async def test_a_chain_ends_as_a_whole_when_its_first_deployment_is_cancelled(
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
        stage = Stage(plane, trace)
        await b.add_application("shop")
        await a.add_application("web")
        await a.add_application("cart")

        async def all_are_there() -> bool:
            made = await stage.deployments()
            running = made.get("cart") and made["cart"].status == DeploymentStatus.RUNNING
            return bool(running and made.keys() == {"cart", "shop", "web"})

        await eventually(all_are_there, 20)
        cart = (await stage.deployments())["cart"]
        await plane.cases.deployments.cancel(cart.id, False, False, by=plane.admin)
        chain = await eventually(stage.ended, 20)

        async def all_ended() -> bool:
            made = await stage.deployments()
            return all(DeploymentStatus(d.status).is_completed for d in made.values())

        await eventually(all_ended, 20)
        made = await stage.deployments()
    assert chain.status == chain_pb2.DEPLOYMENT_CHAIN_CANCELLED
    assert {d.status for d in made.values()} == {DeploymentStatus.CANCELLED}
    assert not trace.exists()
