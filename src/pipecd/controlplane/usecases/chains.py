# SPDX-License-Identifier: Apache-2.0
"""Deployment chains: applications that follow one another, block by block."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.stores import Stores
from pipecd.controlplane.stores.applications import ApplicationFilter
from pipecd.controlplane.stores.documents import EVERYTHING, Page, PageRequest
from pipecd.controlplane.usecases.access import Access, User, check_project, found
from pipecd.controlplane.usecases.commands import Commands
from pipecd.controlplane.usecases.enumeration import named
from pipecd.controlplane.usecases.reports.deployments import DeploymentReports
from pipecd.model.application import ApplicationKind
from pipecd.model.command import CHAIN_COMMIT_KEY
from pipecd.model.errors import AlreadyExists, Denied, NotFound, UserMistake
from pipecd.model.moment import Now, to_unix, utc_now
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import ChainBlock, ChainNode, DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment

_GET = Permission(Resource.DEPLOYMENT_CHAIN, Action.GET)
_LIST = Permission(Resource.DEPLOYMENT_CHAIN, Action.LIST)

_ENDED = (
    pb.DEPLOYMENT_BLOCK_SUCCESS,
    pb.DEPLOYMENT_BLOCK_FAILURE,
    pb.DEPLOYMENT_BLOCK_CANCELLED,
)


@dataclass(frozen=True)
class Matcher:
    """Which applications form a block; empty fields do not narrow, but one must be given."""

    name: str = ""
    kind: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Turn:
    """Whether a deployment in a chain may be planned now, or must be cancelled."""

    plannable: bool = False
    cancel_reason: str = ""


class Chains:
    """Chains of deployments."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        access: Access,
        commands: Commands,
        reports: DeploymentReports,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._commands, self._reports, self._now = commands, reports, now

    async def create(
        self, first: Deployment, matchers: Sequence[Matcher], *, by: PipedCaller
    ) -> None:
        """Starts a chain with this deployment and asks the applications after it to follow.

        Sent again, as its answer was lost or its server killed, it finishes what was begun before
        it says that the deployment exists.
        """
        await self._access.own_application(first.application_id, by=by)
        followers = [await self._matched(matcher, by) for matcher in matchers]
        first.deployment_chain_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"chain/{first.id}"))
        first.deployment_chain_block_index = 0
        chain = DeploymentChain(
            id=first.deployment_chain_id,
            project_id=by.project,
            status=pb.DEPLOYMENT_CHAIN_PENDING,
            blocks=[_first_block(first, to_unix(self._now())), *map(_block, followers)],
        )
        # Both are checked before anything is stored, so a refusal leaves no chain behind.
        self._reports.check_new(first, by=by)
        was_begun = await self._was_begun(first, by)
        with suppress(AlreadyExists):
            await self._stores.chains.add(chain)
        if not was_begun:
            await self._reports.create(first, by=by)
        await self._ask_to_follow(chain.id, first.trigger.commit.hash)
        await self._bus.publish(Signal(Topic.CHAIN, chain.id, by.project))
        if was_begun:
            raise AlreadyExists(f"deployment {first.id} exists already")

    async def turn(
        self, deployment_id: str, chain_id: str, block_index: int, *, by: PipedCaller
    ) -> Turn:
        """Whether the deployment may be planned yet."""
        await self._access.own_deployment(deployment_id, by=by)
        try:
            chain = await self._stores.chains.get(chain_id)
        except NotFound as e:
            raise UserMistake(f"deployment chain {chain_id} does not exist") from e
        if chain.project_id != by.project:
            raise Denied("requested deployment chain doesn't belong to the piped")
        return turn_of(chain, block_index)

    async def listed(self, page: PageRequest = EVERYTHING, *, by: User) -> Page[DeploymentChain]:
        """Newest update first."""
        await self._access.require(by, _LIST)
        return await self._stores.chains.listed(by.project, page)

    async def get(self, id: str, *, by: User) -> DeploymentChain:
        await self._access.require(by, _GET)
        chain = await found(self._stores.chains.get(id), "Deployment chain is not found")
        check_project(by, chain.project_id, "deployment chain")
        return chain

    async def _was_begun(self, first: Deployment, by: PipedCaller) -> bool:
        """Whether the deployment exists as the first of this chain; as any other it is refused."""
        try:
            existing = await self._access.own_deployment(first.id, by=by)
        except NotFound:
            return False
        if existing.deployment_chain_id != first.deployment_chain_id:
            raise AlreadyExists(f"deployment {first.id} exists already")
        return True

    async def _ask_to_follow(self, chain_id: str, commit: str) -> None:
        """Gives the commands that were not given yet to those who are in the stored chain.

        An application of the same repository follows with the commit that the chain began with.
        """
        chain = await self._stores.chains.get(chain_id)
        for index, block in enumerate(chain.blocks[1:], start=1):
            ids = tuple(node.application_ref.application_id for node in block.nodes)
            found = await self._stores.applications.get_many(ids)
            for application in (found[id] for id in ids if id in found):
                with suppress(AlreadyExists):
                    await self._commands.add(_follow(chain, index, application, commit))

    async def _matched(self, matcher: Matcher, by: PipedCaller) -> tuple[Application, ...]:
        if not (matcher.name or matcher.kind or matcher.labels):
            raise UserMistake('at least one of "name", "kind" or "labels" must be set')
        mistake = "invalid application kind given as application matcher value"
        kinds = (named(ApplicationKind, matcher.kind, mistake),) if matcher.kind else ()
        wanted = ApplicationFilter(
            project=by.project,
            enabled=True,
            kinds=kinds,
            name=matcher.name,
            labels=matcher.labels,
        )
        return (await self._stores.applications.listed(wanted)).items


def turn_of(chain: DeploymentChain, block_index: int) -> Turn:
    """A block begins once the block before it has succeeded."""
    if block_index >= len(chain.blocks):
        raise UserMistake(f"the chain has no block {block_index}")
    previous = chain.blocks[block_index - 1].status if block_index else pb.DEPLOYMENT_BLOCK_SUCCESS
    if previous in _ENDED and previous != pb.DEPLOYMENT_BLOCK_SUCCESS:
        ended = pb.ChainBlockStatus.Name(previous).removeprefix("DEPLOYMENT_BLOCK_")
        return Turn(cancel_reason=f"The previous block of the deployment chain ended with {ended}")
    if chain.blocks[block_index].status in _ENDED:
        return Turn(cancel_reason="The block of this deployment in its chain was already completed")
    return Turn(plannable=previous == pb.DEPLOYMENT_BLOCK_SUCCESS)


def _first_block(first: Deployment, now: int) -> ChainBlock:
    node = ChainNode(
        application_ref=pb.ChainApplicationRef(
            application_id=first.application_id, application_name=first.application_name
        ),
        deployment_ref=pb.ChainDeploymentRef(
            deployment_id=first.id, status=first.status, status_reason=first.status_reason
        ),
    )
    return ChainBlock(nodes=[node], status=pb.DEPLOYMENT_BLOCK_PENDING, started_at=now)


def _block(applications: Sequence[Application]) -> ChainBlock:
    nodes = [
        ChainNode(
            application_ref=pb.ChainApplicationRef(
                application_id=application.id, application_name=application.name
            )
        )
        for application in applications
    ]
    return ChainBlock(nodes=nodes, status=pb.DEPLOYMENT_BLOCK_PENDING)


def follow_id(chain_id: str, index: int, application_id: str) -> str:
    """The id of the command that asks an application to follow, which its cause determines."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{chain_id}/{index}/{application_id}"))


def _follow(chain: DeploymentChain, index: int, application: Application, commit: str) -> Command:
    return Command(
        id=follow_id(chain.id, index, application.id),
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
