# SPDX-License-Identifier: Apache-2.0
"""View models of deployment chains: the list with its filters, and the page of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.formatting import (
    Timestamp,
    clause,
    join_words,
    plural,
    timestamp,
)
from pipecd.controlplane.console.list_filters import ActiveFilter, PageUrl
from pipecd.controlplane.console.pipeline_view import Elapsed, elapsed_time
from pipecd.controlplane.console.status_badge import Badge, Tone, deployment_badge
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.chain_pb2 import (
    ChainBlock,
    ChainBlockStatus,
    ChainNode,
    ChainStatus,
    DeploymentChain,
)

LIST_PATH = "/chains"
_MAX_NAMES = 3
# The values of the status filter, in its order, and what rows show for them.
CHAIN_STATUSES: Mapping[str, Badge] = {
    status.name.lower(): deployment_badge(status)
    for status in (
        DeploymentStatus.RUNNING,
        DeploymentStatus.PENDING,
        DeploymentStatus.FAILURE,
        DeploymentStatus.CANCELLED,
        DeploymentStatus.SUCCESS,
    )
}


@dataclass(frozen=True)
class ChainQuery:
    """Filters of the list of chains, and the cursor of the page."""

    text: str = ""
    status: str = ""
    before: str = ""

    def active_filters(self) -> tuple[ActiveFilter, ...]:
        """What limits the list."""
        status = CHAIN_STATUSES[self.status].text.lower() if self.status else ""
        filters = (
            ActiveFilter("q", self.text, f"“{self.text}”"),
            ActiveFilter("status", self.status, status),
        )
        return tuple(each for each in filters if each.value)

    def url(self) -> PageUrl:
        """The address of the list with these filters and nothing else."""
        params = [(each.param, each.value) for each in self.active_filters()]
        params += [("before", self.before)]
        return PageUrl(LIST_PATH, QueryParams(params), reset=("before",))

    def matches(self, chain: DeploymentChain) -> bool:
        """Whether the chain has the status and an application whose name contains the text."""
        if self.status and _chain_status(chain).name.lower() != self.status:
            return False
        nodes = (node for block in chain.blocks for node in block.nodes)
        names = (node.application_ref.application_name.lower() for node in nodes)
        return not self.text or any(self.text.lower() in name for name in names)


def parse_chain_query(params: QueryParams) -> ChainQuery:
    status = params.get("status", "")
    return ChainQuery(
        text=params.get("q", "").strip(),
        status=status if status in CHAIN_STATUSES else "",
        before=params.get("before", ""),
    )


@dataclass(frozen=True)
class ChainNodeView:
    """An application of a block; `deployment_id` is empty before its deployment."""

    application_id: str
    name: str
    deployment_id: str
    badge: Badge
    reason: str


@dataclass(frozen=True)
class BlockView:
    """A block of a chain; `number` counts from one."""

    number: int
    badge: Badge
    started: bool
    elapsed: Elapsed | None
    nodes: tuple[ChainNodeView, ...]

    @property
    def names(self) -> str:
        """The applications, shortened to a few of them."""
        names = [node.name for node in self.nodes[:_MAX_NAMES]]
        others = len(self.nodes) - len(names)
        return join_words([*names, f"{others} more"] if others else names)


@dataclass(frozen=True)
class ChainPage:
    """A deployment chain; in the list, its first application is its name."""

    id: str
    badge: Badge
    name: str
    text: str
    blocks: tuple[BlockView, ...]
    elapsed: Elapsed
    created: Timestamp | None
    completed: bool

    @property
    def deployments(self) -> tuple[str, ...]:
        """The ids of the deployments that have been created, in their order."""
        nodes = (node for block in self.blocks for node in block.nodes)
        return tuple(node.deployment_id for node in nodes if node.deployment_id)

    @property
    def succeeded(self) -> int:
        """The number of blocks that have succeeded."""
        return sum(block.badge.tone is Tone.OK for block in self.blocks)


def chain_page(chain: DeploymentChain, now: datetime) -> ChainPage:
    status = _chain_status(chain)
    blocks = tuple(_block_view(n, block, now) for n, block in enumerate(chain.blocks, start=1))
    return ChainPage(
        id=chain.id,
        badge=deployment_badge(status),
        name=blocks[0].names if blocks else chain.id[:8],
        text=_chain_text(status, blocks),
        blocks=blocks,
        elapsed=elapsed_time(
            chain.created_at, chain.completed_at if status.is_completed else 0, now
        ),
        created=timestamp(chain.created_at, now),
        completed=status.is_completed,
    )


def _chain_status(chain: DeploymentChain) -> DeploymentStatus:
    return DeploymentStatus[ChainStatus.Name(chain.status).removeprefix("DEPLOYMENT_CHAIN_")]


def _block_view(number: int, block: ChainBlock, now: datetime) -> BlockView:
    name = ChainBlockStatus.Name(block.status).removeprefix("DEPLOYMENT_BLOCK_")
    status = DeploymentStatus[name]
    # One that was cancelled before it began has no end, or no beginning.
    has_times = block.started_at > 0 and (block.completed_at > 0 or not status.is_completed)
    return BlockView(
        number=number,
        badge=deployment_badge(status),
        started=block.started_at > 0,
        elapsed=elapsed_time(block.started_at, block.completed_at, now) if has_times else None,
        nodes=tuple(_node_view(node, status) for node in block.nodes),
    )


def _node_view(node: ChainNode, of_block: DeploymentStatus) -> ChainNodeView:
    """An application without a deployment has the status of its block."""
    has_deployment = node.HasField("deployment_ref")
    status = DeploymentStatus(node.deployment_ref.status) if has_deployment else of_block
    return ChainNodeView(
        application_id=node.application_ref.application_id,
        name=node.application_ref.application_name or node.application_ref.application_id[:8],
        deployment_id=node.deployment_ref.deployment_id,
        badge=deployment_badge(status),
        reason=node.deployment_ref.status_reason,
    )


def _chain_text(status: DeploymentStatus, blocks: tuple[BlockView, ...]) -> str:
    """One sentence about where the chain is, or why it has ended."""
    ended = next((b for b in blocks if b.badge.tone in (Tone.BAD, Tone.OFF) and b.started), None)
    match status:
        case DeploymentStatus.SUCCESS:
            return f"All of its {plural(len(blocks), 'block')} succeeded."
        case DeploymentStatus.FAILURE | DeploymentStatus.CANCELLED:
            verb = "failed" if status is DeploymentStatus.FAILURE else "was cancelled"
            if ended is None:
                return f"The chain {verb}."
            culprit = next((n for n in ended.nodes if n.badge == ended.badge), None)
            cause = f" because of {culprit.name}" if culprit else ""
            if culprit and culprit.reason:
                cause += f": {clause(culprit.reason)}"
            else:
                cause += "."
            after = len(blocks) - ended.number
            rest = f" {plural(after, 'block')} after it did not start." if after else ""
            return f"Block {ended.number} {verb}{cause}{rest}"
        case _:
            running = next((b for b in blocks if b.started and b.badge.tone is not Tone.OK), None)
            if running is not None:
                return f"{_place(running, blocks)} is in progress{_rest(running, blocks)}."
            upcoming = next((b for b in blocks if not b.started), None)
            if upcoming is None or upcoming.number == 1:
                return "The first block has not started yet."
            return f"{_place(upcoming, blocks)} starts next{_rest(upcoming, blocks)}."


def _place(block: BlockView, blocks: tuple[BlockView, ...]) -> str:
    return f"Block {block.number} of {len(blocks)}"


def _rest(block: BlockView, blocks: tuple[BlockView, ...]) -> str:
    """How many blocks wait for this one, as the end of a sentence."""
    waiting = len(blocks) - block.number
    if not waiting:
        return ""
    return f"; {plural(waiting, 'block')} after it wait{'s' if waiting == 1 else ''}"
