# SPDX-License-Identifier: Apache-2.0
"""The controller of deployment chains: moves chains from block to block.

It watches the bus: when a deployment changes, its chains are updated, and the pipeds that wait for
their block are woken. It also resyncs every open chain each minute, in case a signal was lost.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from datetime import timedelta

import structlog

from pipecd.cache import LruCache
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.chain_rules import (
    COMPLETED_BLOCKS,
    NodeKey,
    is_final,
    undeployed_nodes,
    update_chain,
)
from pipecd.controlplane.usecases.chains import sync_command_id
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import triggering_chain
from pipecd.model.errors import NotFound, PipecdError
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import COMMAND_FAILED, COMMAND_TIMEOUT, Command
from pipecd.proto.model.deployment_pb2 import Deployment

log = structlog.get_logger()

RESYNC_SECONDS = 60.0
RETRY_SECONDS = 5.0
# Signals that follow the first one closely are handled together with it.
BATCH_SECONDS = 0.02
# Those that changed last; a push may change hundreds of applications.
MAX_CACHED_DEPLOYMENTS = 1000
_TOPICS = frozenset({Topic.CHAIN, Topic.DEPLOYMENT})
# Most deployments have none, and share this set.
_NO_CHAINS = frozenset[str]()
# An unhandled command times out after a day, so no deployment starts later than this.
DEPLOYED_WITHIN = timedelta(hours=25)
_COMMAND_FAILURES = {
    COMMAND_FAILED: "its piped could not deploy it",
    COMMAND_TIMEOUT: "its piped did not handle the sync command within a day",
}


class ChainController:
    """Updates the chains of all projects; runs on one replica at a time."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        *,
        resync_seconds: float = RESYNC_SECONDS,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._bus, self._now = stores, bus, now
        self._resync_seconds = resync_seconds
        # The chains of a deployment never change.
        self._chains_of = LruCache[str, frozenset[str]](MAX_CACHED_DEPLOYMENTS)
        self._open: set[str] = set()

    async def run(self) -> None:
        async with self._bus.subscribe(only=_TOPICS) as signals, asyncio.TaskGroup() as tasks:
            queue = _ChangeQueue()
            tasks.create_task(queue.collect(signals), name="signals of chains")
            clock = asyncio.get_running_loop().time
            resync_at = clock()
            while True:
                await queue.wait(until=resync_at)
                await asyncio.sleep(BATCH_SECONDS)
                is_due = clock() >= resync_at
                everything, chains, deployments = queue.take()
                try:
                    if is_due or everything:
                        await self.resync()
                    for id in chains:
                        await self.update(id)
                    await self.update_chains_of(deployments)
                except PipecdError as e:
                    log.warning(
                        "cannot update deployment chains, retrying",
                        error=str(e),
                        retry_seconds=RETRY_SECONDS,
                    )
                    queue.requeue(chains, deployments)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if is_due:
                    resync_at = clock() + self._resync_seconds

    async def resync(self) -> None:
        """Updates every chain that may still change."""
        unfinished = [chain.id for chain in await self._stores.chains.list_unfinished()]
        for id in sorted({*unfinished, *self._open}):
            await self.update(id)

    async def update_chains_of(self, deployments: Iterable[str]) -> None:
        """Updates the chains of these deployments."""
        cached = {id: self._chains_of.get(id) for id in deployments}
        chains = {chain for of_one in cached.values() if of_one for chain in of_one}
        uncached = tuple(id for id, of_one in cached.items() if of_one is None)
        if uncached:
            for id, deployment in (await self._stores.deployments.get_many(uncached)).items():
                of_one = {deployment.deployment_chain_id, triggering_chain(deployment)} - {""}
                self._chains_of.put(id, frozenset(of_one) if of_one else _NO_CHAINS)
                chains |= of_one
        for chain in sorted(chains):
            await self.update(chain)

    async def update(self, id: str) -> bool:
        """Updates one chain; returns whether it changed."""
        try:
            chain = await self._stores.chains.get(id)
        except NotFound:
            self._open.discard(id)
            return False
        deployments = await self._deployments_of(chain)
        now = to_unix(self._now())
        updated = DeploymentChain()
        updated.CopyFrom(chain)
        update_chain(updated, deployments, now)
        abandoned = await self._abandoned_nodes(updated)
        update_chain(updated, deployments, now, abandoned)
        changed = updated != chain
        if changed:
            updated = await self._stores.chains.update(
                id, lambda c: update_chain(c, deployments, now, abandoned)
            )
            await self._cancel_commands(updated)
            await self._bus.publish(Signal(Topic.CHAIN, id, updated.project_id))
        if is_final(updated):
            self._open.discard(id)
        else:
            self._open.add(id)
        return changed

    async def _deployments_of(self, chain: DeploymentChain) -> tuple[Deployment, ...]:
        """The deployments of the chain, and those in it that started a chain of their own."""
        own = await self._stores.deployments.list_by_chain(chain.id)
        assigned = {
            node.deployment_ref.deployment_id
            for block in chain.blocks
            for node in block.nodes
            if node.HasField("deployment_ref")
        }
        others = await self._stores.deployments.get_many(
            tuple(assigned - {deployment.id for deployment in own})
        )
        return (*own, *others.values())

    async def _abandoned_nodes(self, chain: DeploymentChain) -> frozenset[NodeKey]:
        """The nodes without a deployment that no piped will deploy any more."""
        nodes = [
            node
            for index, block in enumerate(chain.blocks)
            if index and block.status not in COMPLETED_BLOCKS
            for node in undeployed_nodes(index, block)
        ]
        if not nodes:
            return frozenset()
        command_ids = {node: sync_command_id(chain.id, *node) for node in nodes}
        applications = await self._stores.applications.get_many(tuple({id for _, id in nodes}))
        commands = await self._stores.commands.get_many(tuple(command_ids.values()))
        # The commands of a chain that upstream created have other ids; they time out after a day.
        is_old = chain.created_at < to_unix(self._now() - DEPLOYED_WITHIN)
        abandoned: set[NodeKey] = set()
        for node in nodes:
            index, id = node
            application = applications.get(id)
            reason = abandon_reason(application, commands.get(command_ids[node]), is_old=is_old)
            if reason:
                abandoned.add(node)
                log.info(
                    "application of a deployment chain will not be deployed",
                    chain=chain.id,
                    block=index,
                    application=id,
                    name=application.name if application else "",
                    reason=reason,
                )
        return frozenset(abandoned)

    async def _cancel_commands(self, chain: DeploymentChain) -> None:
        """Marks unhandled sync commands of cancelled blocks as failed."""
        cancelled = [
            application
            for index, block in enumerate(chain.blocks)
            if block.status == pb.DEPLOYMENT_BLOCK_CANCELLED
            for _, application in undeployed_nodes(index, block)
        ]

        def fail(command: Command) -> None:
            # The piped may have handled the command since the list was read; its result stays.
            if command.status == CommandStatus.NOT_HANDLED_YET:
                command.status = COMMAND_FAILED
                command.handled_at = to_unix(self._now())

        applications = await self._stores.applications.get_many(tuple(cancelled))
        for piped in sorted({application.piped_id for application in applications.values()}):
            for command in await self._stores.commands.list_unhandled(piped):
                if command.chain_sync_application.deployment_chain_id == chain.id:
                    await self._stores.commands.update(command.id, fail)
                    await self._bus.publish(
                        Signal(Topic.COMMAND, command.id, chain.project_id, piped)
                    )


def abandon_reason(
    application: Application | None, command: Command | None, *, is_old: bool
) -> str:
    """Why an application without a deployment will never be deployed; empty while it may be."""
    if application is None or application.deleted:
        return "it was deleted"
    if application.disabled:
        return "it is disabled"
    if command is not None and command.status in _COMMAND_FAILURES:
        return _COMMAND_FAILURES[command.status]
    return "no piped deployed it within a day" if is_old else ""


class _ChangeQueue:
    """The chains and deployments that changed and are not handled yet."""

    def __init__(self) -> None:
        self._everything = False
        self._chains: dict[str, None] = {}
        self._deployments: dict[str, None] = {}
        self._changed = asyncio.Event()

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
            self._changed.set()

    async def wait(self, *, until: float) -> None:
        """Waits for a change, at most until the given time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()

    def take(self) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
        """Removes and returns the changes: whether anything may have, which chains, deployments."""
        self._changed.clear()
        changes = self._everything, tuple(self._chains), tuple(self._deployments)
        self._everything, self._chains, self._deployments = False, {}, {}
        return changes

    def requeue(self, chains: Iterable[str], deployments: Iterable[str]) -> None:
        """Puts changes back that could not be handled, and resyncs everything next time."""
        self._everything = True
        self._chains.update(dict.fromkeys(chains))
        self._deployments.update(dict.fromkeys(deployments))
        self._changed.set()
