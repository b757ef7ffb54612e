# SPDX-License-Identifier: Apache-2.0
"""Deployment chains: applications that follow one another, block by block."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.documents import EVERYTHING, Insertion, Page, PageRequest
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.controlplane.usecases.commands import CommandUseCases
from pipecd.controlplane.usecases.deployment_reports import DeploymentReports
from pipecd.controlplane.usecases.enums import enum_by_name
from pipecd.model.application import ApplicationKind
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CHAIN_COMMIT_KEY
from pipecd.model.deployment import triggering_chain
from pipecd.model.errors import AlreadyExists, Denied, NotFound, UserMistake
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import ChainBlock, ChainNode, DeploymentChain
from pipecd.proto.model.command_pb2 import COMMAND_NOT_HANDLED_YET, Command
from pipecd.proto.model.deployment_pb2 import Deployment

log = structlog.get_logger()

_GET = Permission(Resource.DEPLOYMENT_CHAIN, Action.GET)
_LIST = Permission(Resource.DEPLOYMENT_CHAIN, Action.LIST)

_COMPLETED = (
    pb.DEPLOYMENT_BLOCK_SUCCESS,
    pb.DEPLOYMENT_BLOCK_FAILURE,
    pb.DEPLOYMENT_BLOCK_CANCELLED,
)


@dataclass(frozen=True)
class Matcher:
    """Selects the applications of a block; empty fields match all, but one must be set."""

    name: str = ""
    kind: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Plannability:
    """Whether a deployment in a chain may be planned now, or must be cancelled."""

    plannable: bool = False
    cancel_reason: str = ""


class ChainUseCases:
    """Creates deployment chains and decides which of their deployments may start."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        access: Access,
        commands: CommandUseCases,
        reports: DeploymentReports,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._commands, self._reports, self._now = commands, reports, now

    async def create(
        self,
        first: Deployment,
        matchers: Sequence[Matcher],
        *,
        by: PipedCaller,
        follows: str | None = None,
    ) -> None:
        """Starts a chain with this deployment and sends sync commands to the matched applications.

        A deployment that was triggered by another chain stays a node of that chain. Applications
        of these outer chains are not added again, or chains could grow without end. A retry of a
        call whose response was lost, or whose server was killed, completes the chain before it
        fails with AlreadyExists.
        """
        await self._access.own_application(first.application_id, by=by)
        outer = await self._outer_chains(first)
        excluded = {first.application_id} | {
            node.application_ref.application_id
            for outer_chain in outer
            for block in outer_chain.blocks
            for node in block.nodes
        }
        followers = [
            await self._matching_applications(matcher, by, excluded) for matcher in matchers
        ]
        first.deployment_chain_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"chain/{first.id}"))
        first.deployment_chain_block_index = 0
        chain = _new_chain(first, followers, to_unix(self._now()))
        self._reports.check_new(first, by=by)
        exists = await self._is_created(first, by)
        if not exists:
            # In one transaction: without its deployment or its commands a chain would never end.
            beside = await self._insertions(chain, first.trigger.commit.hash)
            await self._reports.create(first, by=by, follows=follows, beside=beside)
        if outer:
            await self._stores.chains.update(
                outer[0].id, lambda outer_chain: _set_deployment(outer_chain, first)
            )
        await self._send_commands(chain.id, first.trigger.commit.hash)
        await self._bus.publish(Signal(Topic.CHAIN, chain.id, by.project))
        if exists:
            raise AlreadyExists(f"deployment {first.id} exists already")

    async def _insertions(self, chain: DeploymentChain, commit: str) -> Sequence[Insertion]:
        """What stores a chain and its sync commands.

        Nothing if the chain exists: a server of an earlier version was killed after it stored it.
        """
        with suppress(NotFound):
            await self._stores.chains.get(chain.id)
            return ()
        commands = await self._sync_commands(chain, commit)
        return (
            self._stores.chains.insertion(chain),
            *(self._stores.commands.insertion(command) for command in commands),
        )

    async def plannable(
        self, deployment_id: str, chain_id: str, block_index: int, *, by: PipedCaller
    ) -> Plannability:
        """Whether the deployment may be planned yet, also in the chain that triggered it."""
        deployment = await self._access.own_deployment(deployment_id, by=by)
        try:
            chain = await self._stores.chains.get(chain_id)
        except NotFound as e:
            raise UserMistake(f"deployment chain {chain_id} does not exist") from e
        if chain.project_id != by.project:
            raise Denied("requested deployment chain doesn't belong to the piped")
        decision = plannability(chain, block_index)
        triggering = triggering_chain(deployment)
        if not decision.plannable or triggering == chain_id:
            return decision
        # The deployment may also be a node of the chain that triggered it.
        with suppress(NotFound):
            outer = await self._stores.chains.get(triggering)
            for index, block in enumerate(outer.blocks):
                if any(n.deployment_ref.deployment_id == deployment_id for n in block.nodes):
                    return plannability(outer, index)
        return decision

    async def list(
        self, page: PageRequest = EVERYTHING, *, by: UserOrApiKey
    ) -> Page[DeploymentChain]:
        """Newest update first."""
        await self._access.require(by, _LIST)
        return await self._stores.chains.list(by.project, page)

    async def get(self, id: str, *, by: UserOrApiKey) -> DeploymentChain:
        await self._access.require(by, _GET)
        chain = await or_not_found(self._stores.chains.get(id), "Deployment chain is not found")
        check_project(by, chain.project_id, "deployment chain")
        return chain

    async def _is_created(self, first: Deployment, by: PipedCaller) -> bool:
        """Whether it exists as the first deployment of this chain; AlreadyExists if of another."""
        try:
            existing = await self._access.own_deployment(first.id, by=by)
        except NotFound:
            return False
        if existing.deployment_chain_id != first.deployment_chain_id:
            raise AlreadyExists(f"deployment {first.id} exists already")
        return True

    async def _outer_chains(self, first: Deployment) -> Sequence[DeploymentChain]:
        """The chain that triggered the deployment, the chain that triggered that one, and so on."""
        chains: list[DeploymentChain] = []
        deployment = first
        with suppress(NotFound):
            while triggering := triggering_chain(deployment):
                chain = await self._stores.chains.get(triggering)
                if chain.project_id != first.project_id:
                    break
                chains.append(chain)
                first_id = chain.blocks[0].nodes[0].deployment_ref.deployment_id
                deployment = await self._stores.deployments.get(first_id)
        return chains

    async def _send_commands(self, chain_id: str, commit: str) -> None:
        """Sends the sync commands of the stored chain."""
        for command in await self._sync_commands(await self._stores.chains.get(chain_id), commit):
            try:
                await self._commands.add(command)
            except AlreadyExists:
                await self._commands.wake(command)

    async def _sync_commands(self, chain: DeploymentChain, commit: str) -> Sequence[Command]:
        """An application of the same repository deploys the commit that the chain began with."""
        commands: list[Command] = []
        for index, block in enumerate(chain.blocks[1:], start=1):
            ids = tuple(node.application_ref.application_id for node in block.nodes)
            by_id = await self._stores.applications.get_many(ids)
            for application in (by_id[id] for id in ids if id in by_id):
                command = Command(
                    status=COMMAND_NOT_HANDLED_YET,
                    id=sync_command_id(chain.id, index, application.id),
                    piped_id=application.piped_id,
                    application_id=application.id,
                    project_id=chain.project_id,
                    commander=chain.id,
                    type=Command.CHAIN_SYNC_APPLICATION,
                    metadata={CHAIN_COMMIT_KEY: commit},
                    chain_sync_application=Command.ChainSyncApplication(
                        deployment_chain_id=chain.id,
                        block_index=index,
                        application_id=application.id,
                        sync_strategy=common.AUTO,
                    ),
                )
                commands.append(command)
        return commands

    async def _matching_applications(
        self, matcher: Matcher, by: PipedCaller, excluded: Collection[str]
    ) -> tuple[Application, ...]:
        if not (matcher.name or matcher.kind or matcher.labels):
            raise UserMistake('at least one of "name", "kind" or "labels" must be set')
        error = "invalid application kind given as application matcher value"
        kinds = (enum_by_name(ApplicationKind, matcher.kind, error),) if matcher.kind else ()
        filter = ApplicationFilter(
            project=by.project,
            enabled=True,
            kinds=kinds,
            name=matcher.name,
            labels=matcher.labels,
        )
        listed = (await self._stores.applications.list(filter)).items
        for application in listed:
            if application.id in excluded:
                log.info("application is already in the chain", application=application.id)
        return tuple(application for application in listed if application.id not in excluded)


def plannability(chain: DeploymentChain, block_index: int) -> Plannability:
    """A block may start once the block before it has succeeded."""
    if block_index >= len(chain.blocks):
        raise UserMistake(f"the chain has no block {block_index}")
    previous = chain.blocks[block_index - 1].status if block_index else pb.DEPLOYMENT_BLOCK_SUCCESS
    if previous in _COMPLETED and previous != pb.DEPLOYMENT_BLOCK_SUCCESS:
        ended = pb.ChainBlockStatus.Name(previous).removeprefix("DEPLOYMENT_BLOCK_")
        return Plannability(
            cancel_reason=f"The previous block of the deployment chain ended with {ended}"
        )
    if chain.blocks[block_index].status in _COMPLETED:
        return Plannability(
            cancel_reason="The block of this deployment in its chain was already completed"
        )
    return Plannability(plannable=previous == pb.DEPLOYMENT_BLOCK_SUCCESS)


def _new_chain(
    first: Deployment, followers: Sequence[Sequence[Application]], now: int
) -> DeploymentChain:
    """A chain of one block with the first deployment, then a block for each group of followers."""
    first_node = ChainNode(
        application_ref=pb.ChainApplicationRef(
            application_id=first.application_id, application_name=first.application_name
        ),
        deployment_ref=pb.ChainDeploymentRef(
            deployment_id=first.id, status=first.status, status_reason=first.status_reason
        ),
    )
    blocks = [
        ChainBlock(nodes=[first_node], status=pb.DEPLOYMENT_BLOCK_PENDING, started_at=now),
    ]
    for applications in followers:
        nodes = [
            ChainNode(
                application_ref=pb.ChainApplicationRef(
                    application_id=application.id, application_name=application.name
                )
            )
            for application in applications
        ]
        blocks.append(ChainBlock(nodes=nodes, status=pb.DEPLOYMENT_BLOCK_PENDING))
    return DeploymentChain(
        id=first.deployment_chain_id,
        project_id=first.project_id,
        status=pb.DEPLOYMENT_CHAIN_PENDING,
        blocks=blocks,
    )


def _set_deployment(chain: DeploymentChain, deployment: Deployment) -> None:
    """Adds a deployment to the node of its application."""
    nodes = [
        node
        for block in chain.blocks
        for node in block.nodes
        if node.application_ref.application_id == deployment.application_id
    ]
    if any(node.deployment_ref.deployment_id == deployment.id for node in nodes):
        return
    for node in nodes:
        if not node.HasField("deployment_ref"):
            node.deployment_ref.deployment_id = deployment.id
            return


def sync_command_id(chain_id: str, index: int, application_id: str) -> str:
    """The id of an application's sync command; a retry gets the same one."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{chain_id}/{index}/{application_id}"))
