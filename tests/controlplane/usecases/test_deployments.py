# SPDX-License-Identifier: Apache-2.0
"""Deployments: reported by their piped, seen and steered by people."""

from collections.abc import Awaitable, Callable

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.deployment_reports import DeploymentReports
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import AlreadyExists, Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.proto.service.api_pb2 import RegisterEventRequest

Report = Callable[[DeploymentReports, Deployment, PipedCaller], Awaitable[None]]


def ended(
    deployment: Deployment, status: pb.DeploymentStatus.ValueType = pb.DEPLOYMENT_SUCCESS
) -> rpc.ReportDeploymentCompletedRequest:
    return rpc.ReportDeploymentCompletedRequest(
        deployment_id=deployment.id, status=status, completed_at=9, status_reason="done"
    )


def moved(
    deployment: Deployment, status: pb.DeploymentStatus.ValueType = pb.DEPLOYMENT_RUNNING
) -> rpc.ReportDeploymentStatusChangedRequest:
    return rpc.ReportDeploymentStatusChangedRequest(deployment_id=deployment.id, status=status)


def staged(
    deployment: Deployment, stage: str = "s1", status: pb.StageStatus.ValueType = pb.STAGE_RUNNING
) -> rpc.ReportStageStatusChangedRequest:
    return rpc.ReportStageStatusChangedRequest(
        deployment_id=deployment.id,
        stage_id=stage,
        status=status,
        status_reason="why",
        visible=True,
        retried_count=2,
        completed_at=7,
    )


def planned(deployment: Deployment) -> rpc.ReportDeploymentPlannedRequest:
    return rpc.ReportDeploymentPlannedRequest(deployment_id=deployment.id)


async def test_a_new_deployment_wakes_its_piped(
    cases: UseCases,
    bus: MemoryBus,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
) -> None:
    made = new_deployment()
    async with bus.subscribe() as signals:
        await cases.deployment_reports.create(made, by=piped)
        assert await anext(signals) == Signal(Topic.DEPLOYMENT, made.id, "shop", piped.piped)
    waiting = await cases.deployment_reports.list_not_completed(by=piped)
    assert [d.id for d in waiting] == [made.id]
    with pytest.raises(AlreadyExists):
        await cases.deployment_reports.create(made, by=piped)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("piped_id", "another", id="that names another piped"),
        pytest.param("project_id", "declared", id="that names another project"),
    ],
)
async def test_a_piped_cannot_create_a_deployment(
    cases: UseCases,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    field: str,
    value: str,
) -> None:
    made = new_deployment()
    setattr(made, field, value)
    with pytest.raises(Denied, match="requested deployment doesn't belong to the piped"):
        await cases.deployment_reports.create(made, by=piped)


async def test_a_piped_cannot_deploy_an_application_of_another_one(
    cases: UseCases, new_deployment: Callable[[], Deployment], other_piped: PipedCaller
) -> None:
    with pytest.raises(Denied, match="requested application doesn't belong to the piped"):
        await cases.deployment_reports.create(new_deployment(), by=other_piped)


async def test_a_plan_replaces_what_was_there(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    plan = rpc.ReportDeploymentPlannedRequest(
        deployment_id=deployment.id,
        status_reason="planned",
        running_commit_hash="beef",
        running_config_filename="app.yaml",
        sync_strategy=common.PIPELINE,
        stages=[pb.PipelineStage(id="x", name="WAIT", created_at=1, updated_at=1)],
    )
    await cases.deployment_reports.report_planned(plan, by=piped)
    stored = await cases.deployments.get(deployment.id, by=piped)
    assert (stored.status, stored.summary) == (DeploymentStatus.PLANNED, "")
    assert [stage.id for stage in stored.stages] == ["x"]
    assert stored.trigger.sync_strategy == 2
    assert (stored.running_commit_hash, stored.running_config_filename) == ("beef", "app.yaml")


async def test_stages_and_the_end_are_recorded(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    reports = cases.deployment_reports
    await reports.report_status(moved(deployment), by=piped)
    await reports.report_stage_status(staged(deployment), by=piped)
    end = ended(deployment, pb.DEPLOYMENT_FAILURE)
    end.stage_statuses["s2"] = pb.STAGE_CANCELLED
    end.stage_statuses["not there"] = pb.STAGE_CANCELLED
    await reports.report_completed(end, by=piped)
    stored = await cases.deployments.get(deployment.id, by=piped)
    first, second, third = stored.stages
    assert (first.status, first.retried_count, first.completed_at) == (StageStatus.RUNNING, 2, 7)
    assert (second.status, third.status) == (StageStatus.CANCELLED, StageStatus.NOT_STARTED_YET)
    assert (stored.status, stored.status_reason, stored.completed_at) == (
        DeploymentStatus.FAILURE,
        "done",
        9,
    )
    assert await reports.list_not_completed(by=piped) == ()


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(lambda r, d, by: r.report_planned(planned(d), by=by), id="planned again"),
        pytest.param(lambda r, d, by: r.report_status(moved(d), by=by), id="running again"),
        pytest.param(
            lambda r, d, by: r.report_completed(ended(d, pb.DEPLOYMENT_FAILURE), by=by),
            id="completed with another result",
        ),
    ],
)
async def test_a_completed_deployment_is_not(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, report: Report
) -> None:
    await cases.deployment_reports.report_completed(ended(deployment), by=piped)
    with pytest.raises(Conflict):
        await report(cases.deployment_reports, deployment, piped)
    stored = await cases.deployments.get(deployment.id, by=piped)
    assert stored.status == DeploymentStatus.SUCCESS


async def test_the_same_end_may_be_reported_twice(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    await cases.deployment_reports.report_completed(ended(deployment), by=piped)
    await cases.deployment_reports.report_completed(ended(deployment), by=piped)


async def test_steps_back_are_recorded_while_a_deployment_runs(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    await cases.deployment_reports.report_status(moved(deployment), by=piped)
    await cases.deployment_reports.report_planned(planned(deployment), by=piped)
    stored = await cases.deployments.get(deployment.id, by=piped)
    assert stored.status == DeploymentStatus.PLANNED


async def test_an_unfinished_status_is_no_end(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    with pytest.raises(UserMistake, match="RUNNING is not a status of a completed deployment"):
        await cases.deployment_reports.report_completed(
            ended(deployment, pb.DEPLOYMENT_RUNNING), by=piped
        )


async def test_metadata_is_merged_also_on_a_deployment_that_has_none(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    reports, id = cases.deployment_reports, deployment.id
    for value in ("old", "new"):
        await reports.save_metadata(id, {value: "1", "k": value}, by=piped)
        await reports.save_shared_metadata(id, {value: "2", "k": value}, by=piped)
        await reports.save_plugin_metadata(id, "wait", {value: "3", "k": value}, by=piped)
        await reports.save_stage_metadata(id, "s1", {value: "4", "k": value}, by=piped)
    stored = await cases.deployments.get(id, by=piped)
    assert dict(stored.metadata) == {"old": "1", "new": "1", "k": "new"}
    assert dict(stored.metadata_v2.shared.keyValues) == {"old": "2", "new": "2", "k": "new"}
    plugin = stored.metadata_v2.plugins["wait"].keyValues
    assert dict(plugin) == {"old": "3", "new": "3", "k": "new"}
    assert dict(stored.stages[0].metadata) == {"old": "4", "new": "4", "k": "new"}


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(lambda r, d, by: r.report_planned(planned(d), by=by), id="planned"),
        pytest.param(lambda r, d, by: r.report_status(moved(d), by=by), id="moved"),
        pytest.param(lambda r, d, by: r.report_completed(ended(d), by=by), id="completed"),
        pytest.param(lambda r, d, by: r.report_stage_status(staged(d), by=by), id="staged"),
        pytest.param(lambda r, d, by: r.save_metadata(d.id, {}, by=by), id="noted"),
        pytest.param(lambda r, d, by: r.save_shared_metadata(d.id, {}, by=by), id="shared"),
        pytest.param(lambda r, d, by: r.save_plugin_metadata(d.id, "p", {}, by=by), id="plugged"),
        pytest.param(
            lambda r, d, by: r.save_stage_metadata(d.id, "s1", {}, by=by), id="stage-noted"
        ),
    ],
)
async def test_a_deployment_of_another_piped_cannot_be(
    cases: UseCases, deployment: Deployment, other_piped: PipedCaller, report: Report
) -> None:
    with pytest.raises(Denied, match="requested deployment doesn't belong to the piped"):
        await report(cases.deployment_reports, deployment, other_piped)
    gone = Deployment(id="gone")
    with pytest.raises(NotFound, match="Entity was not found to get deployment gone"):
        await report(cases.deployment_reports, gone, other_piped)


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(
            lambda r, d, by: r.report_stage_status(staged(d, "nope"), by=by), id="a status"
        ),
        pytest.param(lambda r, d, by: r.save_stage_metadata(d.id, "nope", {}, by=by), id="a note"),
    ],
)
async def test_an_unknown_stage_cannot_get(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, report: Report
) -> None:
    with pytest.raises(UserMistake):
        await report(cases.deployment_reports, deployment, piped)


async def test_a_cancel_becomes_a_command(
    cases: UseCases, deployment: Deployment, admin: User
) -> None:
    id = await cases.deployments.cancel(deployment.id, True, False, by=admin)
    command = await cases.commands.get(id, by=admin)
    assert (command.type, command.commander) == (Command.CANCEL_DEPLOYMENT, admin.name)
    assert (command.piped_id, command.deployment_id) == (deployment.piped_id, deployment.id)
    assert command.cancel_deployment.force_rollback
    assert not command.cancel_deployment.force_no_rollback


async def test_a_completed_deployment_cannot_be_cancelled_approved_or_skipped(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, admin: User
) -> None:
    await cases.deployment_reports.report_completed(ended(deployment), by=piped)
    with pytest.raises(Conflict):
        await cases.deployments.cancel(deployment.id, False, False, by=admin)
    with pytest.raises(Conflict):
        await cases.deployments.approve(deployment.id, "s2", by=admin)
    with pytest.raises(Conflict):
        await cases.deployments.skip(deployment.id, "s3", by=admin)


async def test_anybody_with_the_permission_approves_when_nobody_is_named(
    cases: UseCases, deployment: Deployment, admin: User, viewer: User
) -> None:
    with pytest.raises(Denied, match="Permission Denied"):
        await cases.deployments.approve(deployment.id, "s2", by=viewer)
    id = await cases.deployments.approve(deployment.id, "s2", by=admin)
    command = await cases.commands.get(id, by=admin)
    assert (command.type, command.stage_id) == (Command.APPROVE_STAGE, "s2")
    assert command.approve_stage.stage_id == "s2"


@pytest.mark.parametrize(
    "named",
    [
        pytest.param({"Approvers": "ann, bob"}, id="in the metadata of the first generation"),
        pytest.param({}, id="on the stage itself"),
    ],
)
async def test_only_the_named_approve(
    cases: UseCases,
    stores: Stores,
    deployment: Deployment,
    admin: User,
    named: dict[str, str],
) -> None:
    def change(stored: Deployment) -> None:
        stored.stages[1].metadata.update(named)
        if not named:
            stored.stages[1].authorized_operators.extend(["ann", "bob"])

    await stores.deployments.update(deployment.id, change)
    with pytest.raises(Denied, match="ann, bob"):
        await cases.deployments.approve(deployment.id, "s2", by=admin)
    assert await cases.deployments.approve(deployment.id, "s2", by=User("shop", "bob", ("Editor",)))


@pytest.mark.parametrize(
    ("stage", "possible"),
    [
        pytest.param("s3", True, id="an analysis stage"),
        pytest.param("s1", False, id="not a stage that does not allow it"),
        pytest.param("s2", True, id="a stage that says so"),
        pytest.param("nope", False, id="not a stage that does not exist"),
    ],
)
async def test_what_can_be_skipped(
    cases: UseCases,
    stores: Stores,
    deployment: Deployment,
    admin: User,
    stage: str,
    possible: bool,
) -> None:
    await stores.deployments.update(
        deployment.id,
        lambda d: setattr(d.stages[1], "available_operation", pb.MANUAL_OPERATION_SKIP),
    )
    if possible:
        id = await cases.deployments.skip(deployment.id, stage, by=admin)
        assert (await cases.commands.get(id, by=admin)).skip_stage.stage_id == stage
    else:
        with pytest.raises(Conflict):
            await cases.deployments.skip(deployment.id, stage, by=admin)


async def test_a_finished_stage_is_past_acting_on(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, admin: User
) -> None:
    await cases.deployment_reports.report_stage_status(
        staged(deployment, "s2", pb.STAGE_SUCCESS), by=piped
    )
    with pytest.raises(Conflict):
        await cases.deployments.approve(deployment.id, "s2", by=admin)


async def test_people_of_another_project_see_nothing(
    cases: UseCases, deployment: Deployment, stranger: User
) -> None:
    for attempt in (
        cases.deployments.get(deployment.id, by=stranger),
        cases.deployments.cancel(deployment.id, False, False, by=stranger),
        cases.deployments.approve(deployment.id, "s2", by=stranger),
        cases.deployments.skip(deployment.id, "s3", by=stranger),
    ):
        with pytest.raises(ForeignProject, match="Requested deployment does not belong"):
            await attempt
    listed = await cases.deployments.list(DeploymentFilter("declared"), by=stranger)
    assert listed.items == ()


async def test_a_trace_leads_to_the_deployments_of_its_own_project(
    cases: UseCases,
    admin: User,
    stores: Stores,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
) -> None:
    told = RegisterEventRequest(name="image", data="v1", commit_hash="abc", commit_url="https://c")
    await cases.events.register(told, by=admin)
    own, foreign = new_deployment(), new_deployment()
    own.deployment_trace_commit_hash = foreign.deployment_trace_commit_hash = "abc"
    foreign.project_id = "declared"
    await cases.deployment_reports.create(own, by=piped)
    await stores.deployments.add(foreign)
    page = await cases.deployments.traces("abc", by=admin)
    (found,) = page.items
    assert found.trace.commit_url == "https://c"
    assert [d.id for d in found.deployments] == [own.id]
    assert (await cases.deployments.traces("other", by=admin)).items == ()
