# SPDX-License-Identifier: Apache-2.0
"""Leads chains of deployments from block to block.

It follows the bus: a deployment that changed brings its chain up to date, and the pipeds that wait
for their turn are woken. Now and then it looks at every open chain, in case a signal was lost.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from datetime import timedelta

import structlog

from pipecd.cache import LruCache
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.chain_rules import ENDED, Place, advance, is_settled, unmet
from pipecd.controlplane.usecases.chains import sync_command_id
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import asking_chain
from pipecd.model.errors import NotFound, PipecdError
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import COMMAND_FAILED, COMMAND_TIMEOUT, Command
from pipecd.proto.model.deployment_pb2 import Deployment

log = structlog.get_logger()

SWEEP_SECONDS = 60.0
RETRY_SECONDS = 5.0
# What follows the first news closely is looked at together with it.
GATHER_SECONDS = 0.02
MOST_REMEMBERED = 10_000
_FOLLOWED = frozenset({Topic.CHAIN, Topic.DEPLOYMENT})
# A command that nobody answers is given up after a day; nothing is begun later than that.
FOLLOWED_WITHIN = timedelta(hours=25)
_GIVEN_UP = {
    COMMAND_FAILED: "its piped could not deploy it",
    COMMAND_TIMEOUT: "its piped did not answer for a day",
}


class ChainController:
    """Brings chains up to date, on one replica at a time."""

    def __init__(
        self, stores: Stores, bus: Bus, *, sweep_seconds: float = SWEEP_SECONDS, now: Now = utc_now
    ) -> None:
        self._stores, self._bus, self._now = stores, bus, now
        self._sweep_seconds = sweep_seconds
        # In which chains a deployment has a place never changes, so it is read once.
        self._chains_of = LruCache[str, frozenset[str]](MOST_REMEMBERED)
        self._open: set[str] = set()

    async def run(self) -> None:
        async with self._bus.subscribe(only=_FOLLOWED) as signals, asyncio.TaskGroup() as tasks:
            news = _News()
            tasks.create_task(news.collect(signals), name="signals of chains")
            clock = asyncio.get_running_loop().time
            sweep_at = clock()
            while True:
                await news.arrived(until=sweep_at)
                await asyncio.sleep(GATHER_SECONDS)
                is_due = clock() >= sweep_at
                if not await self._follow(news, everything=is_due):
                    await asyncio.sleep(RETRY_SECONDS)
                elif is_due:
                    sweep_at = clock() + self._sweep_seconds

    async def sweep(self) -> None:
        """Looks at every chain that may still change."""
        unfinished = [chain.id for chain in await self._stores.chains.list_unfinished()]
        for id in sorted({*unfinished, *self._open}):
            await self.update(id)

    async def deployments_changed(self, ids: Iterable[str]) -> None:
        """Looks at the chains of these deployments."""
        for chain in await self._concerned(tuple(ids)):
            await self.update(chain)

    async def update(self, id: str) -> bool:
        """Brings one chain up to date; whether anything changed."""
        try:
            chain = await self._stores.chains.get(id)
        except NotFound:
            self._open.discard(id)
            return False
        deployments = await self._deployments(chain)
        now = to_unix(self._now())
        wanted = DeploymentChain()
        wanted.CopyFrom(chain)
        advance(wanted, deployments, now)
        hopeless = await self._hopeless(wanted)
        advance(wanted, deployments, now, hopeless)
        changed = wanted != chain
        if changed:
            wanted = await self._stores.chains.update(
                id, lambda c: advance(c, deployments, now, hopeless)
            )
            await self._withdraw(wanted)
            await self._bus.publish(Signal(Topic.CHAIN, id, wanted.project_id))
        if is_settled(wanted):
            self._open.discard(id)
        else:
            self._open.add(id)
        return changed

    async def _deployments(self, chain: DeploymentChain) -> tuple[Deployment, ...]:
        """Those of the chain, and those in it that have begun a chain of their own."""
        own = await self._stores.deployments.list_by_chain(chain.id)
        shown = {
            node.deployment_ref.deployment_id
            for block in chain.blocks
            for node in block.nodes
            if node.HasField("deployment_ref")
        }
        others = await self._stores.deployments.get_many(
            tuple(shown - {deployment.id for deployment in own})
        )
        return (*own, *others.values())

    async def _hopeless(self, chain: DeploymentChain) -> frozenset[Place]:
        """What nobody will deploy: it is gone or disabled, or its piped was asked and gave up."""
        places = [
            place
            for index, block in enumerate(chain.blocks)
            if index and block.status not in ENDED
            for place in unmet(index, block)
        ]
        if not places:
            return frozenset()
        names = {place: sync_command_id(chain.id, *place) for place in places}
        applications = await self._stores.applications.get_many(tuple({id for _, id in places}))
        commands = await self._stores.commands.get_many(tuple(names.values()))
        # A chain that upstream began has commands of other names; those are given up after a day.
        is_old = chain.created_at < to_unix(self._now() - FOLLOWED_WITHIN)
        hopeless: set[Place] = set()
        for place in places:
            index, application = place
            why = why_not(applications.get(application), commands.get(names[place]), is_old=is_old)
            if why:
                hopeless.add(place)
                about = {"chain": chain.id, "block": index, "application": application}
                log.info("application will not follow in its chain", reason=why, **about)
        return frozenset(hopeless)

    async def _follow(self, news: "_News", *, everything: bool) -> bool:
        """Does what the news ask for; whether all of it could be done."""
        heard_everything, chains, deployments = news.taken()
        try:
            if everything or heard_everything:
                await self.sweep()
            for id in chains:
                await self.update(id)
            await self.deployments_changed(deployments)
        except PipecdError as e:
            log.warning("chains not brought up to date, trying again", error=str(e))
            news.again(chains, deployments)
            return False
        return True

    async def _concerned(self, deployments: tuple[str, ...]) -> tuple[str, ...]:
        """The chains in which these deployments have a place."""
        cached = {id: self._chains_of.get(id) for id in deployments}
        chains = {chain for of_one in cached.values() if of_one for chain in of_one}
        unknown = tuple(id for id, of_one in cached.items() if of_one is None)
        if unknown:
            for id, deployment in (await self._stores.deployments.get_many(unknown)).items():
                places = {deployment.deployment_chain_id, asking_chain(deployment)} - {""}
                self._chains_of.put(id, frozenset(places))
                chains |= places
        return tuple(sorted(chains))

    async def _withdraw(self, chain: DeploymentChain) -> None:
        """Takes back what nobody has begun yet of blocks that are cancelled."""
        cancelled = [
            node.application_ref.application_id
            for block in chain.blocks
            if block.status == pb.DEPLOYMENT_BLOCK_CANCELLED
            for node in block.nodes
            if not node.HasField("deployment_ref")
        ]
        applications = await self._stores.applications.get_many(tuple(cancelled))
        for piped in sorted({application.piped_id for application in applications.values()}):
            for command in await self._stores.commands.list_unhandled(piped):
                if command.chain_sync_application.deployment_chain_id == chain.id:
                    await self._stores.commands.update(command.id, self._give_up)
                    await self._bus.publish(
                        Signal(Topic.COMMAND, command.id, chain.project_id, piped)
                    )

    def _give_up(self, command: Command) -> None:
        # The piped may have answered since the list was read; its word stands.
        if command.status == CommandStatus.NOT_HANDLED_YET:
            command.status = COMMAND_FAILED
            command.handled_at = to_unix(self._now())


def why_not(application: Application | None, command: Command | None, *, is_old: bool) -> str:
    """Why an application that has not followed yet never will; empty while it may."""
    if application is None or application.deleted:
        return "it was deleted"
    if application.disabled:
        return "it is disabled"
    if command is not None and command.status in _GIVEN_UP:
        return _GIVEN_UP[command.status]
    return "nobody has deployed it for a day" if is_old else ""


class _News:
    """What was heard and not looked at yet."""

    def __init__(self) -> None:
        self._everything = False
        self._chains: dict[str, None] = {}
        self._deployments: dict[str, None] = {}
        self._heard = asyncio.Event()

    async def collect(self, signals: AsyncIterator[Signal]) -> None:
        async for signal in signals:
            match signal.topic:
                case Topic.CHAIN:
                    self._chains[signal.id] = None
                case Topic.DEPLOYMENT:
                    self._deployments[signal.id] = None
                case Topic.EVERYTHING:
                    self._everything = True
                case _:
                    continue
            self._heard.set()

    async def arrived(self, *, until: float) -> None:
        """Waits for news, but not longer than until then."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._heard.wait()

    def again(self, chains: Iterable[str], deployments: Iterable[str]) -> None:
        """Takes back what could not be looked at."""
        self._everything = True
        self._heard.set()
        self._chains.update(dict.fromkeys(chains))
        self._deployments.update(dict.fromkeys(deployments))

    def taken(self) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
        """Everything, or which chains and deployments."""
        self._heard.clear()
        found = self._everything, tuple(self._chains), tuple(self._deployments)
        self._everything, self._chains, self._deployments = False, {}, {}
        return found
