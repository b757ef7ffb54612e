# SPDX-License-Identifier: Apache-2.0
"""Deployments: reports of the piped, and cancelling, approving and skipping by users."""

from collections.abc import Awaitable, Callable

import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.api_keys import READ_ONLY, READ_WRITE, READ_WRITE_APPROVE
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.deployment_reports import DeploymentReports
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import AlreadyExists, Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest

Report = Callable[[DeploymentReports, Deployment, PipedCaller], Awaitable[None]]


def completed_report(
    deployment: Deployment, status: pb.DeploymentStatus.ValueType = pb.DEPLOYMENT_SUCCESS
) -> rpc.ReportDeploymentCompletedRequest:
    return rpc.ReportDeploymentCompletedRequest(
        deployment_id=deployment.id, status=status, completed_at=9, status_reason="done"
    )


def status_report(
    deployment: Deployment, status: pb.DeploymentStatus.ValueType = pb.DEPLOYMENT_RUNNING
) -> rpc.ReportDeploymentStatusChangedRequest:
    return rpc.ReportDeploymentStatusChangedRequest(deployment_id=deployment.id, status=status)


def stage_report(
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


def planned_report(deployment: Deployment) -> rpc.ReportDeploymentPlannedRequest:
    return rpc.ReportDeploymentPlannedRequest(deployment_id=deployment.id)


async def test_a_new_deployment_is_signalled_without_waking_the_piped_that_creates_it(
    cases: UseCases,
    bus: MemoryBus,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
) -> None:
    created = new_deployment()
    async with bus.subscribe() as signals:
        await cases.deployment_reports.create(created, by=piped)
        assert await anext(signals) == Signal(Topic.DEPLOYMENT, created.id, "shop")
    waiting = await cases.deployment_reports.list_not_completed(by=piped)
    assert [d.id for d in waiting] == [created.id]
    with pytest.raises(AlreadyExists):
        await cases.deployment_reports.create(created, by=piped)


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
    created = new_deployment()
    setattr(created, field, value)
    with pytest.raises(Denied, match="requested deployment doesn't belong to the piped"):
        await cases.deployment_reports.create(created, by=piped)


async def test_a_piped_cannot_deploy_an_application_of_another_piped(
    cases: UseCases, new_deployment: Callable[[], Deployment], other_piped: PipedCaller
) -> None:
    with pytest.raises(Denied, match="requested application doesn't belong to the piped"):
        await cases.deployment_reports.create(new_deployment(), by=other_piped)


async def test_a_plan_is_taken_once(
    cases: UseCases, new_deployment: Callable[[], Deployment], piped: PipedCaller
) -> None:
    pending = new_deployment()
    await cases.deployment_reports.create(pending, by=piped)
    plan = rpc.ReportDeploymentPlannedRequest(
        deployment_id=pending.id,
        status_reason="planned",
        running_commit_hash="beef",
        running_config_filename="app.yaml",
        sync_strategy=common.PIPELINE,
        stages=[pb.PipelineStage(id="x", name="WAIT", created_at=1, updated_at=1)],
    )
    await cases.deployment_reports.report_planned(plan, by=piped)
    late = rpc.ReportDeploymentPlannedRequest(deployment_id=pending.id, summary="another plan")
    await cases.deployment_reports.report_planned(late, by=piped)
    stored = await cases.deployments.get(pending.id, by=piped)
    assert (stored.status, stored.summary) == (DeploymentStatus.PLANNED, "")
    assert [stage.id for stage in stored.stages] == ["x"]
    assert stored.trigger.sync_strategy == 2
    assert (stored.running_commit_hash, stored.running_config_filename) == ("beef", "app.yaml")


async def test_stage_statuses_and_the_completion_are_stored(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    reports = cases.deployment_reports
    await reports.report_status(status_report(deployment), by=piped)
    await reports.report_stage_status(stage_report(deployment), by=piped)
    end = completed_report(deployment, pb.DEPLOYMENT_FAILURE)
    end.stage_statuses["s2"] = pb.STAGE_CANCELLED
    end.stage_statuses["not there"] = pb.STAGE_CANCELLED
    await reports.report_completed(end, by=piped)
    stored = await cases.deployments.get(deployment.id, by=piped)
    first, second, third = stored.stages
    assert (first.status, first.retried_count, first.completed_at) == (StageStatus.FAILURE, 2, 9)
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
        pytest.param(
            lambda r, d, by: r.report_planned(planned_report(d), by=by), id="planned again"
        ),
        pytest.param(lambda r, d, by: r.report_status(status_report(d), by=by), id="running again"),
        pytest.param(
            lambda r, d, by: r.report_completed(completed_report(d, pb.DEPLOYMENT_FAILURE), by=by),
            id="completed with another result",
        ),
    ],
)
async def test_a_completed_deployment_is_not(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, report: Report
) -> None:
    await cases.deployment_reports.report_completed(completed_report(deployment), by=piped)
    with pytest.raises(Conflict):
        await report(cases.deployment_reports, deployment, piped)
    stored = await cases.deployments.get(deployment.id, by=piped)
    assert stored.status == DeploymentStatus.SUCCESS


async def test_the_same_completion_can_be_reported_twice(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    await cases.deployment_reports.report_completed(completed_report(deployment), by=piped)
    await cases.deployment_reports.report_completed(completed_report(deployment), by=piped)


async def test_a_running_deployment_does_not_return_to_an_earlier_status(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    await cases.deployment_reports.report_status(status_report(deployment), by=piped)
    before = await cases.deployments.get(deployment.id, by=piped)
    await cases.deployment_reports.report_planned(planned_report(deployment), by=piped)
    earlier = status_report(deployment, pb.DEPLOYMENT_PLANNED)
    await cases.deployment_reports.report_status(earlier, by=piped)
    assert await cases.deployments.get(deployment.id, by=piped) == before


async def test_a_completion_with_a_status_that_is_not_completed_is_refused(
    cases: UseCases, deployment: Deployment, piped: PipedCaller
) -> None:
    with pytest.raises(UserMistake, match="RUNNING is not a status of a completed deployment"):
        await cases.deployment_reports.report_completed(
            completed_report(deployment, pb.DEPLOYMENT_RUNNING), by=piped
        )


async def test_metadata_is_merged(
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
        pytest.param(lambda r, d, by: r.report_planned(planned_report(d), by=by), id="planned"),
        pytest.param(
            lambda r, d, by: r.report_status(status_report(d), by=by), id="given a status"
        ),
        pytest.param(
            lambda r, d, by: r.report_completed(completed_report(d), by=by), id="completed"
        ),
        pytest.param(
            lambda r, d, by: r.report_stage_status(stage_report(d), by=by),
            id="given a stage status",
        ),
        pytest.param(lambda r, d, by: r.save_metadata(d.id, {}, by=by), id="given metadata"),
        pytest.param(
            lambda r, d, by: r.save_shared_metadata(d.id, {}, by=by), id="given shared metadata"
        ),
        pytest.param(
            lambda r, d, by: r.save_plugin_metadata(d.id, "p", {}, by=by),
            id="given plugin metadata",
        ),
        pytest.param(
            lambda r, d, by: r.save_stage_metadata(d.id, "s1", {}, by=by), id="given stage metadata"
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
            lambda r, d, by: r.report_stage_status(stage_report(d, "nope"), by=by), id="a status"
        ),
        pytest.param(
            lambda r, d, by: r.save_stage_metadata(d.id, "nope", {}, by=by), id="metadata"
        ),
    ],
)
async def test_an_unknown_stage_cannot_get(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, report: Report
) -> None:
    with pytest.raises(UserMistake):
        await report(cases.deployment_reports, deployment, piped)


async def test_cancelling_sends_a_command(
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
    await cases.deployment_reports.report_completed(completed_report(deployment), by=piped)
    with pytest.raises(Conflict):
        await cases.deployments.cancel(deployment.id, False, False, by=admin)
    with pytest.raises(Conflict):
        await cases.deployments.approve(deployment.id, "s2", by=admin)
    with pytest.raises(Conflict):
        await cases.deployments.skip(deployment.id, "s3", by=admin)


async def test_every_user_with_the_permission_can_approve_a_stage_without_approvers(
    cases: UseCases, deployment: Deployment, admin: User, viewer: User
) -> None:
    with pytest.raises(Denied, match="Permission Denied"):
        await cases.deployments.approve(deployment.id, "s2", by=viewer)
    id = await cases.deployments.approve(deployment.id, "s2", by=admin)
    command = await cases.commands.get(id, by=admin)
    assert (command.type, command.stage_id) == (Command.APPROVE_STAGE, "s2")
    assert command.approve_stage.stage_id == "s2"


async def test_an_approver_can_reject_with_a_reason(
    *, cases: UseCases, deployment: Deployment, piped: PipedCaller, admin: User, viewer: User
) -> None:
    reject = cases.deployments.reject
    with pytest.raises(Conflict, match="does not know rejections") as refused:
        await reject(deployment.id, "s2", "too risky", by=admin)
    assert refused.value.hint == "cancel the deployment instead"
    request = AcquirePipedLeaseRequest(host="worker")
    request.ticket = (await cases.piped_leases.acquire(request, by=piped))[0].ticket
    await cases.piped_leases.acquire(request, by=piped)
    with pytest.raises(Denied):
        await reject(deployment.id, "s2", "too risky", by=viewer)
    with pytest.raises(UserMistake, match="the reason has 0 characters"):
        await reject(deployment.id, "s2", " \n ", by=admin)
    with pytest.raises(Conflict, match="stage ANALYSIS waits for no approval"):
        await reject(deployment.id, "s3", "too risky", by=admin)
    id = await reject(deployment.id, "s2", "too\nrisky", by=admin)
    command = await cases.commands.get(id, by=admin)
    # No piped takes it for an approval or a cancellation.
    assert (command.type, command.stage_id) == (Command.SKIP_STAGE, "s2")
    assert command.metadata == {"RejectionReason": "too risky"}
    await cases.commands.report_handled(CommandResult(id, CommandStatus.SUCCEEDED, 1), by=piped)
    assert (await cases.commands.get(id, by=admin)).metadata == {"RejectionReason": "too risky"}


@pytest.mark.parametrize(
    "named",
    [
        pytest.param({"Approvers": "ann, bob"}, id="in the stage metadata of v0"),
        pytest.param({}, id="on the stage itself"),
    ],
)
async def test_only_the_approvers_of_a_stage_can_approve_it(
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


async def test_an_api_key_approves_only_if_its_role_says_so(
    cases: UseCases, deployment: Deployment, admin: User
) -> None:
    keys, approve = cases.api_keys, cases.deployments.approve
    written = await keys.generate("ci", APIKey.READ_WRITE, by=admin)
    with pytest.raises(Denied, match="the API key ci may not approve stages") as refused:
        await approve(deployment.id, "s2", by=await keys.verify(written))
    assert "READ_WRITE_APPROVE" in refused.value.hint
    with pytest.raises(Denied, match="the API key ci may not reject stages"):
        await cases.deployments.reject(deployment.id, "s2", "no", by=await keys.verify(written))
    id = written.partition(".")[0]
    await keys.set_role(id, APIKey.READ_WRITE, may_approve=True, by=admin)
    assert (await keys.roles(by=admin))[id] == READ_WRITE_APPROVE
    command = await cases.commands.get(
        await approve(deployment.id, "s2", by=await keys.verify(written)), by=admin
    )
    # The person counts, and the key is named.
    assert command.commander == admin.name
    assert command.metadata == {"ApiKeyName": "ci", "ApiKeyID": id}
    await keys.set_role(id, APIKey.READ_ONLY, may_approve=False, by=admin)
    with pytest.raises(Denied):
        await approve(deployment.id, "s2", by=await keys.verify(written))
    assert (await keys.roles(by=admin))[id] == READ_ONLY


async def test_the_key_of_an_approver_approves_and_that_of_another_user_does_not(
    cases: UseCases, stores: Stores, deployment: Deployment, admin: User
) -> None:
    def change(stored: Deployment) -> None:
        stored.stages[1].authorized_operators.append("ann")

    await stores.deployments.update(deployment.id, change)
    for creator, is_approver in (("ann", True), ("bob", False)):
        user = User(admin.project, creator, ("Admin",))
        key = await cases.api_keys.generate("ann", APIKey.READ_WRITE, may_approve=True, by=user)
        attempt = cases.deployments.approve(
            deployment.id, "s2", by=await cases.api_keys.verify(key)
        )
        if is_approver:
            assert await attempt
        else:
            with pytest.raises(Denied, match=r"you \(bob\) are not in the approver list: ann"):
                await attempt


async def test_only_a_user_generates_keys_that_approve(
    cases: UseCases, admin: User, stranger: User, program: ApiKeyCaller
) -> None:
    generate = cases.api_keys.generate
    with pytest.raises(Denied):
        await generate("k", APIKey.READ_WRITE, may_approve=True, by=program)
    with pytest.raises(UserMistake, match="a read-only key cannot approve"):
        await generate("k", APIKey.READ_ONLY, may_approve=True, by=admin)
    id = (await generate("k", APIKey.READ_WRITE, by=admin)).partition(".")[0]
    with pytest.raises(ForeignProject):
        await cases.api_keys.set_role(id, APIKey.READ_WRITE, may_approve=True, by=stranger)
    assert (await cases.api_keys.roles(by=admin))[id] == READ_WRITE


@pytest.mark.parametrize(
    ("stage", "possible"),
    [
        pytest.param("s3", True, id="an analysis stage"),
        pytest.param("s1", False, id="not a stage without the operation"),
        pytest.param("s2", True, id="a stage with the operation"),
        pytest.param("nope", False, id="not an unknown stage"),
    ],
)
async def test_which_stages_can_be_skipped(
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


async def test_a_completed_stage_cannot_be_approved_or_skipped(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, admin: User
) -> None:
    await cases.deployment_reports.report_stage_status(
        stage_report(deployment, "s2", pb.STAGE_SUCCESS), by=piped
    )
    with pytest.raises(Conflict):
        await cases.deployments.approve(deployment.id, "s2", by=admin)


async def test_users_of_another_project_cannot_read_or_change_a_deployment(
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


async def test_a_trace_lists_only_the_deployments_of_its_project(
    cases: UseCases,
    admin: User,
    stores: Stores,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
) -> None:
    request = RegisterEventRequest(
        name="image", data="v1", commit_hash="abc", commit_url="https://c"
    )
    await cases.events.register(request, by=admin)
    own, foreign = new_deployment(), new_deployment()
    own.deployment_trace_commit_hash = foreign.deployment_trace_commit_hash = "abc"
    foreign.project_id = "declared"
    await cases.deployment_reports.create(own, by=piped)
    await stores.deployments.add(foreign)
    page = await cases.deployments.traces("abc", by=admin)
    (traced,) = page.items
    assert traced.trace.commit_url == "https://c"
    assert [d.id for d in traced.deployments] == [own.id]
    assert (await cases.deployments.traces("other", by=admin)).items == ()
