# SPDX-License-Identifier: Apache-2.0
"""Deployment chains: creation, nesting, and when a block may start."""

from collections.abc import Callable

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.chains import Matcher, Plannability, plannability
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import IN_CHAIN
from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    NotFound,
    Unavailable,
    UserMistake,
)
from pipecd.proto.model import chain_pb2 as pb
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment

PENDING, RUNNING = pb.DEPLOYMENT_BLOCK_PENDING, pb.DEPLOYMENT_BLOCK_RUNNING
SUCCESS, FAILURE = pb.DEPLOYMENT_BLOCK_SUCCESS, pb.DEPLOYMENT_BLOCK_FAILURE
CANCELLED = pb.DEPLOYMENT_BLOCK_CANCELLED


@pytest.fixture
async def followers(cases: UseCases, draft: Application, admin: User) -> dict[str, str]:
    """Ids by name of further applications."""
    ids: dict[str, str] = {}
    for name, kind, labels in (
        ("web", common.KUBERNETES, {"tier": "front"}),
        ("infra", common.TERRAFORM, {"tier": "back"}),
        ("off", common.TERRAFORM, {"tier": "front"}),
    ):
        draft.name, draft.kind = name, kind
        draft.labels.clear()
        draft.labels.update(labels)
        ids[name] = await cases.applications.add(draft, by=admin)
    await cases.applications.disable(ids["off"], by=admin)
    return ids


async def test_a_chain_sends_sync_commands_to_the_matching_applications(
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    admin: User,
    followers: dict[str, str],
) -> None:
    first = new_deployment()
    matchers = [Matcher(kind="TERRAFORM"), Matcher(labels={"tier": "front"}), Matcher(name="none")]
    await cases.chains.create(first, matchers, by=piped)
    (chain,) = (await cases.chains.list(by=admin)).items
    names = [[node.application_ref.application_name for node in b.nodes] for b in chain.blocks]
    assert names == [["cart"], ["infra"], ["web"], []]
    assert chain.blocks[0].nodes[0].deployment_ref.deployment_id == first.id
    stored = await cases.deployments.get(first.id, by=piped)
    assert stored.deployment_chain_id == chain.id
    commands = await stores.commands.list_unhandled(piped.piped)
    commanded = {c.application_id: c.chain_sync_application.block_index for c in commands}
    assert commanded == {followers["infra"]: 1, followers["web"]: 2}
    assert {c.type for c in commands} == {Command.CHAIN_SYNC_APPLICATION}
    assert {c.commander for c in commands} == {chain.id}


@pytest.mark.parametrize(
    "matcher",
    [
        pytest.param(Matcher(kind="ECSApp"), id="with a kind that does not exist"),
        pytest.param(Matcher(), id="that would match everything"),
    ],
)
async def test_a_matcher_is_refused(
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    matcher: Matcher,
) -> None:
    with pytest.raises(UserMistake):
        await cases.chains.create(new_deployment(), [matcher], by=piped)
    assert (await stores.chains.list("shop")).items == ()


async def test_a_chain_of_a_deployment_of_another_piped_stores_nothing(
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
) -> None:
    first = new_deployment()
    first.piped_id = "another"
    with pytest.raises(Denied):
        await cases.chains.create(first, [], by=piped)
    assert (await stores.chains.list("shop")).items == ()


@pytest.mark.parametrize("store", ["deployments", "chains", "commands"])
async def test_a_chain_its_first_deployment_and_its_commands_are_stored_together_or_not_at_all(
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    followers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    store: str,
) -> None:
    def killed(_transaction: object) -> None:
        raise Unavailable("the server is killed")

    first = new_deployment()
    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(getattr(stores, store), "insertion", lambda *_, **__: killed)
        await cases.chains.create(first, [Matcher(name="web")], by=piped)
    assert (await stores.chains.list("shop")).items == ()
    assert await stores.commands.list_unhandled(piped.piped) == ()
    with pytest.raises(NotFound):
        await stores.deployments.get(first.id)
    await cases.chains.create(first, [Matcher(name="web")], by=piped)
    (commanded,) = await stores.commands.list_unhandled(piped.piped)
    assert commanded.application_id == followers["web"]


async def test_a_chain_that_lost_against_a_newer_deployment_leaves_nothing_behind(
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    followers: dict[str, str],
) -> None:
    newer = new_deployment()
    await cases.deployment_reports.create(newer, by=piped)
    with pytest.raises(Conflict):
        await cases.chains.create(new_deployment(), [Matcher(name="web")], by=piped, follows="old")
    assert (await stores.chains.list("shop")).items == ()
    assert await stores.commands.list_unhandled(piped.piped) == ()


async def test_a_retry_completes_a_chain_that_an_earlier_version_created_partially(
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    followers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, matchers = new_deployment(), [Matcher(name="web"), Matcher(name="infra")]

    async def fail(*_: object, **__: object) -> None:
        raise Unavailable("the server is killed")

    async def only_the_chain(chain: DeploymentChain, _commit: str) -> tuple[()]:
        await stores.chains.add(chain)
        return ()

    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(cases.chains, "_insertions", only_the_chain)
        patch.setattr(stores.deployments, "add", fail)
        await cases.chains.create(first, matchers, by=piped)
    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(stores.commands, "add", fail)
        await cases.chains.create(first, matchers, by=piped)
    with pytest.raises(AlreadyExists):
        await cases.chains.create(first, matchers, by=piped)
    (created,) = (await stores.chains.list("shop")).items
    assert (await stores.deployments.get(first.id)).deployment_chain_id == created.id
    commanded = await stores.commands.list_unhandled(piped.piped)
    assert {c.application_id for c in commanded} == {followers["web"], followers["infra"]}
    # Applications whose command was handled meanwhile get no second one.
    await cases.commands.report_handled(
        CommandResult(commanded[0].id, CommandStatus.SUCCEEDED, 1), by=piped
    )
    with pytest.raises(AlreadyExists):
        await cases.chains.create(first, matchers, by=piped)
    assert len(await stores.commands.list_unhandled(piped.piped)) == 1


async def test_an_existing_deployment_without_a_chain_cannot_start_one(
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    other_piped: PipedCaller,
) -> None:
    first = new_deployment()
    await cases.deployment_reports.create(first, by=piped)
    with pytest.raises(AlreadyExists):
        await cases.chains.create(first, [Matcher(name="web")], by=piped)
    with pytest.raises(Denied):
        await cases.chains.create(first, [Matcher(name="web")], by=other_piped)
    assert (await stores.chains.list("shop")).items == ()


@pytest.fixture
def nested(
    new_deployment: Callable[[], Deployment], followers: dict[str, str]
) -> Callable[[Deployment, str], Deployment]:
    """Creates the deployment of an application that a chain triggers."""

    def build(before: Deployment, name: str) -> Deployment:
        deployment = new_deployment()
        deployment.application_id, deployment.application_name = followers[name], name
        deployment.trigger.commander = before.deployment_chain_id
        deployment.trigger.strategy_summary = IN_CHAIN
        return deployment

    return build


async def test_the_first_deployment_of_a_nested_chain_waits_for_its_block_in_the_outer_chain(
    *,
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    nested: Callable[[Deployment, str], Deployment],
    piped: PipedCaller,
    admin: User,
) -> None:
    first = new_deployment()
    await cases.chains.create(first, [Matcher(name="web")], by=piped)
    second = nested(first, "web")
    await cases.chains.create(second, [Matcher(name="infra")], by=piped)
    assert first.deployment_chain_id != second.deployment_chain_id
    outer = await cases.chains.get(first.deployment_chain_id, by=admin)
    assert outer.blocks[1].nodes[0].deployment_ref.deployment_id == second.id
    assert (
        await cases.chains.plannable(second.id, second.deployment_chain_id, 0, by=piped)
        == Plannability()
    )

    def succeed(chain: pb.DeploymentChain) -> None:
        chain.blocks[0].status = SUCCESS

    def fail(chain: pb.DeploymentChain) -> None:
        chain.blocks[0].status = FAILURE

    await stores.chains.update(outer.id, succeed)
    decision = await cases.chains.plannable(second.id, second.deployment_chain_id, 0, by=piped)
    assert decision == Plannability(plannable=True)
    await stores.chains.update(outer.id, fail)
    decision = await cases.chains.plannable(second.id, second.deployment_chain_id, 0, by=piped)
    assert decision.cancel_reason == "The previous block of the deployment chain ended with FAILURE"


async def test_chains_that_trigger_each_other_terminate(
    *,
    cases: UseCases,
    new_deployment: Callable[[], Deployment],
    nested: Callable[[Deployment, str], Deployment],
    piped: PipedCaller,
    admin: User,
) -> None:
    def names(chain: pb.DeploymentChain) -> list[list[str]]:
        return [[node.application_ref.application_name for node in b.nodes] for b in chain.blocks]

    first = new_deployment()
    everybody = [Matcher(name="cart"), Matcher(name="web"), Matcher(name="infra")]
    await cases.chains.create(first, [Matcher(name="cart"), Matcher(name="web")], by=piped)
    second = nested(first, "web")
    await cases.chains.create(second, everybody, by=piped)
    third = nested(second, "infra")
    await cases.chains.create(third, everybody, by=piped)
    created = [
        names(await cases.chains.get(each.deployment_chain_id, by=admin))
        for each in (first, second, third)
    ]
    assert created == [
        [["cart"], [], ["web"]],
        [["web"], [], [], ["infra"]],
        [["infra"], [], [], []],
    ]


def chain(*statuses: pb.ChainBlockStatus.ValueType) -> pb.DeploymentChain:
    return pb.DeploymentChain(blocks=[pb.ChainBlock(status=status) for status in statuses])


@pytest.mark.parametrize(
    ("blocks", "index", "decision"),
    [
        pytest.param(
            (PENDING,), 0, Plannability(plannable=True), id="the first block starts at once"
        ),
        pytest.param((PENDING, PENDING), 1, Plannability(), id="a block waits for a pending one"),
        pytest.param((RUNNING, PENDING), 1, Plannability(), id="a block waits for a running one"),
        pytest.param(
            (SUCCESS, PENDING), 1, Plannability(plannable=True), id="a block follows a success"
        ),
        pytest.param(
            (SUCCESS, RUNNING), 1, Plannability(plannable=True), id="a running block continues"
        ),
    ],
)
def test_whether_a_block_may_be_planned(
    blocks: tuple[pb.ChainBlockStatus.ValueType, ...], index: int, decision: Plannability
) -> None:
    assert plannability(chain(*blocks), index) == decision


@pytest.mark.parametrize(
    ("blocks", "index"),
    [
        pytest.param((FAILURE, PENDING), 1, id="the previous block failed"),
        pytest.param((CANCELLED, PENDING), 1, id="the previous block was cancelled"),
        pytest.param((SUCCESS, FAILURE), 1, id="its own block has failed"),
        pytest.param((SUCCESS,), 0, id="its own block has succeeded"),
    ],
)
def test_a_deployment_is_cancelled_when(
    blocks: tuple[pb.ChainBlockStatus.ValueType, ...], index: int
) -> None:
    decision = plannability(chain(*blocks), index)
    assert decision.cancel_reason
    assert not decision.plannable


async def test_only_the_piped_of_a_deployment_can_query_whether_it_may_be_planned(
    *,
    cases: UseCases,
    stores: Stores,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    other_piped: PipedCaller,
    admin: User,
    stranger: User,
) -> None:
    first = new_deployment()
    await cases.chains.create(first, [], by=piped)
    (created,) = (await cases.chains.list(by=admin)).items
    assert await cases.chains.plannable(first.id, created.id, 0, by=piped) == Plannability(
        plannable=True
    )
    with pytest.raises(UserMistake):
        await cases.chains.plannable(first.id, created.id, 1, by=piped)
    with pytest.raises(UserMistake):
        await cases.chains.plannable(first.id, "unknown", 0, by=piped)
    with pytest.raises(Denied):
        await cases.chains.plannable(first.id, created.id, 0, by=other_piped)
    await stores.chains.add(pb.DeploymentChain(id="foreign", project_id="declared"))
    with pytest.raises(Denied):
        await cases.chains.plannable(first.id, "foreign", 0, by=piped)
    with pytest.raises(ForeignProject):
        await cases.chains.get(created.id, by=stranger)


async def test_every_role_can_read_chains(cases: UseCases, admin: User, viewer: User) -> None:
    assert (await cases.chains.list(by=viewer)).items == ()
    with pytest.raises(Denied):
        await cases.chains.list(by=User("shop", "nobody", ()))
    with pytest.raises(NotFound):
        await cases.chains.get("nope", by=admin)
