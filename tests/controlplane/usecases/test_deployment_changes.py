# SPDX-License-Identifier: Apache-2.0
"""What deployments change: their pipeds report it, users of the project read it."""

from collections.abc import Awaitable, Callable

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.deployment_reports import MAX_CHANGES_SIZE
from pipecd.model.clock import Now, to_unix
from pipecd.model.errors import Denied, NotFound, UserMistake
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.planpreview_pb2 import PluginPlanPreviewResult
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges


def changes(details: bytes = b"- v1\n+ v2\n") -> DeploymentChanges:
    result = PluginPlanPreviewResult(
        plugin_name="kubernetes",
        deploy_target="dev",
        plan_summary=b"1 changed",
        plan_details=details,
    )
    return DeploymentChanges(running_commit="abc", results=[result], created_at=1)


async def test_reported_changes_can_be_read_at_once(
    cases: UseCases, bus: MemoryBus, deployment: Deployment, piped: PipedCaller, viewer: User
) -> None:
    assert await cases.deployments.changes(deployment.id, by=viewer) is None
    async with bus.subscribe() as signals:
        await cases.deployment_reports.report_changes(deployment.id, changes(), by=piped)
        assert await anext(signals) == Signal(Topic.DEPLOYMENT, deployment.id, "shop")
    assert await cases.deployments.changes(deployment.id, by=viewer) == changes()


async def test_a_repeated_report_replaces_the_one_before(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, viewer: User
) -> None:
    for details in (b"- v1\n+ v2\n", b"- v1\n+ v3\n"):
        await cases.deployment_reports.report_changes(deployment.id, changes(details), by=piped)
    assert await cases.deployments.changes(deployment.id, by=viewer) == changes(b"- v1\n+ v3\n")


async def test_changes_of_another_piped_or_project_are_denied(
    cases: UseCases,
    deployment: Deployment,
    piped: PipedCaller,
    other_piped: PipedCaller,
    stranger: User,
    viewer: User,
) -> None:
    with pytest.raises(Denied, match="requested deployment doesn't belong to the piped"):
        await cases.deployment_reports.report_changes(deployment.id, changes(), by=other_piped)
    with pytest.raises(NotFound):
        await cases.deployment_reports.report_changes("unknown", changes(), by=piped)
    with pytest.raises(ForeignProject):
        await cases.deployments.changes(deployment.id, by=stranger)
    assert await cases.deployments.changes(deployment.id, by=viewer) is None


async def test_changes_that_are_too_large_are_refused(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    too_large = changes(b"+" * MAX_CHANGES_SIZE)
    with pytest.raises(UserMistake, match=r"the changes have 2\.0 MiB"):
        await cases.deployment_reports.report_changes(deployment.id, too_large, by=piped)


Step = Callable[[], Awaitable[Deployment]]
Clock = Callable[[float], None]


@pytest.fixture(params=[0, -90, 90], ids="the clock of the piped is {} s ahead".format)
def trigger(
    request: pytest.FixtureRequest,
    cases: UseCases,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    now: Now,
    advance: Clock,
) -> Step:
    """Creates a deployment with the time of its piped."""

    async def create() -> Deployment:
        advance(10)
        created = new_deployment()
        created.created_at = created.updated_at = to_unix(now()) + request.param
        await cases.deployment_reports.create(created, by=piped)
        return created

    return create


@pytest.fixture
def complete(
    request: pytest.FixtureRequest,
    cases: UseCases,
    piped: PipedCaller,
    now: Now,
    advance: Clock,
) -> Callable[..., Awaitable[None]]:
    """Plans a deployment and reports its end."""
    ahead: int = request.node.callspec.params["trigger"]

    async def run(
        deployment: Deployment,
        status: pb.DeploymentStatus.ValueType = pb.DEPLOYMENT_SUCCESS,
    ) -> None:
        advance(10)
        reports = cases.deployment_reports
        planned = rpc.ReportDeploymentPlannedRequest(deployment_id=deployment.id)
        await reports.report_planned(planned, by=piped)
        advance(10)
        ended = rpc.ReportDeploymentCompletedRequest(
            deployment_id=deployment.id, status=status, completed_at=to_unix(now()) + ahead
        )
        await reports.report_completed(ended, by=piped)

    return run


async def test_a_deployment_is_compared_with_the_success_before_it(
    cases: UseCases, viewer: User, trigger: Step, complete: Callable[..., Awaitable[None]]
) -> None:
    first = await trigger()
    # This one waits until the first has ended.
    second = await trigger()
    await complete(first)
    await complete(second)
    failed = await trigger()
    await complete(failed, pb.DEPLOYMENT_FAILURE)
    last = await trigger()
    await complete(last)

    async def previous(deployment: Deployment) -> str:
        stored = await cases.deployments.get(deployment.id, by=viewer)
        found = await cases.deployments.previous_success(stored, by=viewer)
        return found.id if found else ""

    found = [await previous(each) for each in (first, second, failed, last)]
    assert found == ["", first.id, second.id, second.id]


async def test_deployments_of_one_second_are_told_apart_by_the_commit_that_ran(
    cases: UseCases, viewer: User, piped: PipedCaller, new_deployment: Callable[[], Deployment]
) -> None:
    reports = cases.deployment_reports
    made: list[Deployment] = []
    for commit, running in (("c1", ""), ("c2", "c1"), ("c3", "c2")):
        deployment = new_deployment()
        deployment.trigger.commit.hash = commit
        await reports.create(deployment, by=piped)
        await reports.report_planned(
            rpc.ReportDeploymentPlannedRequest(
                deployment_id=deployment.id, running_commit_hash=running
            ),
            by=piped,
        )
        await reports.report_completed(
            rpc.ReportDeploymentCompletedRequest(
                deployment_id=deployment.id, status=pb.DEPLOYMENT_SUCCESS, completed_at=1
            ),
            by=piped,
        )
        made.append(deployment)
    found = list[str]()
    for deployment in made:
        stored = await cases.deployments.get(deployment.id, by=viewer)
        previous = await cases.deployments.previous_success(stored, by=viewer)
        found.append(previous.trigger.commit.hash if previous else "")
    assert found == ["", "c1", "c2"]
