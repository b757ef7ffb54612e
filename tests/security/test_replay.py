# SPDX-License-Identifier: Apache-2.0
"""Replay: what was recorded once, by whoever saw it, gains nothing when it is sent again.

Each attack returns what it gained, which must be nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.command import CommandStatus
from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    LeaseLost,
    NotFound,
    Unauthenticated,
)
from pipecd.proto.model import deployment_pb2 as model
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import lease_pb2 as lease
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from pipecd.secrets.standardwebhook import signed_headers
from pipecd.wire.credentials import PipedToken
from servers.clocked_plane import PASSWORD, ClockedPlane, open_clocked_plane
from servers.tenants import new_deployment

BODY = b'{"repository": "git@h:o/r.git", "branch": "main"}'

Attack = Callable[[ClockedPlane], Awaitable[object]]


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ClockedPlane]:
    async with open_clocked_plane(tmp_path) as plane:
        yield plane


async def recorded(plane: ClockedPlane) -> dict[str, str]:
    """The headers of a delivery that a Git host sent and that was accepted."""
    await plane.cases.webhooks.rotate(by=plane.own.user("Admin"))
    (secret,) = await plane.cases.webhooks.secrets_of("demo")
    headers = signed_headers(secret, "delivery-1", plane.unix, BODY)
    assert (
        await plane.http.post("/webhooks/demo", content=BODY, headers=headers)
    ).status_code == 202
    return headers


async def is_accepted(
    plane: ClockedPlane, headers: dict[str, str], project: str = "demo", body: bytes = BODY
) -> bool:
    answer = await plane.http.post(f"/webhooks/{project}", content=body, headers=headers)
    return answer.status_code == 202


async def webhook_again(plane: ClockedPlane) -> object:
    return await is_accepted(plane, await recorded(plane))


async def webhook_with_a_new_id(plane: ClockedPlane) -> object:
    return await is_accepted(plane, {**await recorded(plane), "webhook-id": "delivery-2"})


async def webhook_with_a_new_time(plane: ClockedPlane) -> object:
    headers = await recorded(plane)
    plane.advance(timedelta(minutes=6))
    return await is_accepted(plane, {**headers, "webhook-timestamp": str(plane.unix)})


async def webhook_after_its_time(plane: ClockedPlane) -> object:
    headers = await recorded(plane)
    plane.advance(timedelta(minutes=11))
    return await is_accepted(plane, headers)


async def webhook_to_another_project(plane: ClockedPlane) -> object:
    headers = await recorded(plane)
    await plane.cases.webhooks.rotate(by=plane.rival.user("Admin"))
    return await is_accepted(plane, headers, "rival")


async def webhook_with_another_body(plane: ClockedPlane) -> object:
    return await is_accepted(
        plane, {**await recorded(plane), "webhook-id": "delivery-1"}, body=BODY + b" "
    )


async def webhook_after_two_rotations(plane: ClockedPlane) -> object:
    await plane.cases.webhooks.rotate(by=plane.own.user("Admin"))
    (secret,) = await plane.cases.webhooks.secrets_of("demo")
    for _ in range(2):
        await plane.cases.webhooks.rotate(by=plane.own.user("Admin"))
    return await is_accepted(plane, signed_headers(secret, "late", plane.unix, BODY))


async def webhook_a_day_after_a_rotation(plane: ClockedPlane) -> object:
    await plane.cases.webhooks.rotate(by=plane.own.user("Admin"))
    (secret,) = await plane.cases.webhooks.secrets_of("demo")
    await plane.cases.webhooks.rotate(by=plane.own.user("Admin"))
    plane.advance(timedelta(hours=25))
    return await is_accepted(plane, signed_headers(secret, "late", plane.unix, BODY))


async def is_signed_in(plane: ClockedPlane, token: str) -> bool:
    answer = await plane.http.get("/applications", headers={"cookie": f"token={token}"})
    return answer.status_code == 200


async def session_after_a_new_password(plane: ClockedPlane) -> object:
    token = (await plane.cases.sessions.sign_in("demo", "root", PASSWORD)).token
    assert await is_signed_in(plane, token)
    await plane.cases.projects.set_static_admin("root", "another", by=plane.own.user("Admin"))
    return await is_signed_in(plane, token)


async def session_after_the_operator_reset_the_password(plane: ClockedPlane) -> object:
    token = (await plane.cases.sessions.sign_in("demo", "root", PASSWORD)).token
    assert await is_signed_in(plane, token)
    await plane.cases.projects.reset_admin("demo")
    return await is_signed_in(plane, token)


async def session_after_its_time(plane: ClockedPlane) -> object:
    token = plane.session("Admin")
    assert await is_signed_in(plane, token)
    plane.advance(timedelta(days=31))
    return await is_signed_in(plane, token)


async def form_of_another_session(plane: ClockedPlane) -> object:
    """The CSRF token of the attacker's own session in a form that the victim's browser sends."""
    mine, victims = plane.session("Viewer"), plane.session("Admin")
    page = (await plane.http.get("/settings/project", headers={"cookie": f"token={mine}"})).text
    csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
    answer = await plane.submit("/settings/project/webhook", victims, csrf=csrf)
    return answer.status_code != 403 or await plane.cases.webhooks.settings(
        by=plane.own.user("Admin")
    )


async def form_of_an_earlier_session(plane: ClockedPlane) -> object:
    earlier = plane.session("Admin")
    page = (await plane.http.get("/settings/project", headers={"cookie": f"token={earlier}"})).text
    csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
    plane.advance(timedelta(seconds=1))
    answer = await plane.submit("/settings/project/webhook", plane.session("Admin"), csrf=csrf)
    return answer.status_code != 403


async def approve(plane: ClockedPlane, *, status: model.StageStatus.ValueType) -> object:
    """Approves a stage, lets its piped finish it, and sends the approval again."""
    piped, admin = plane.own.piped, plane.own.user("Admin")
    command = await plane.cases.deployments.approve(piped.deployment, "s1", by=admin)
    handled = CommandResult(command, CommandStatus.SUCCEEDED, plane.unix)
    await plane.cases.commands.report_handled(handled, by=piped.caller)
    report = rpc.ReportStageStatusChangedRequest(
        deployment_id=piped.deployment, stage_id="s1", status=status, completed_at=plane.unix
    )
    await plane.cases.deployment_reports.report_stage_status(report, by=piped.caller)
    path = f"/deployments/{piped.deployment}/stages/s1/approve"
    plane.advance(timedelta(minutes=1))
    answer = await plane.submit(path, plane.session("Admin"))
    unhandled = await plane.stores.commands.list_unhandled(piped.caller.piped)
    # The page of the deployment says why, and follows no command.
    is_sent = answer.status_code != 303 or "cmd=" in answer.headers["location"]
    return is_sent or [c for c in unhandled if c.HasField("approve_stage")]


async def approval_of_a_finished_stage(plane: ClockedPlane) -> object:
    return await approve(plane, status=model.STAGE_SUCCESS)


async def approval_of_a_failed_stage(plane: ClockedPlane) -> object:
    return await approve(plane, status=model.STAGE_FAILURE)


async def completed(plane: ClockedPlane, status: model.DeploymentStatus.ValueType) -> None:
    report = rpc.ReportDeploymentCompletedRequest(
        deployment_id=plane.own.piped.deployment, status=status, completed_at=plane.unix
    )
    await plane.cases.deployment_reports.report_completed(report, by=plane.own.piped.caller)


async def cancellation_of_a_finished_deployment(plane: ClockedPlane) -> object:
    await completed(plane, model.DEPLOYMENT_SUCCESS)
    try:
        return await plane.cases.deployments.cancel(
            plane.own.piped.deployment, True, False, by=plane.own.user("Admin")
        )
    except Conflict:
        return None


async def plan_of_a_finished_deployment(plane: ClockedPlane) -> object:
    """The recorded plan with other stages, after the deployment has ended."""
    await completed(plane, model.DEPLOYMENT_FAILURE)
    stages = [model.PipelineStage(id="evil", name="SCRIPT_RUN", created_at=1, updated_at=1)]
    plan = rpc.ReportDeploymentPlannedRequest(
        deployment_id=plane.own.piped.deployment, stages=stages
    )
    with pytest.raises(Conflict):
        await plane.cases.deployment_reports.report_planned(plan, by=plane.own.piped.caller)
    stored = await plane.stores.deployments.get(plane.own.piped.deployment)
    return stored.status != model.DEPLOYMENT_FAILURE or "evil" in {s.id for s in stored.stages}


async def another_end_of_a_deployment(plane: ClockedPlane) -> object:
    await completed(plane, model.DEPLOYMENT_FAILURE)
    with pytest.raises(Conflict):
        await completed(plane, model.DEPLOYMENT_SUCCESS)
    stored = await plane.stores.deployments.get(plane.own.piped.deployment)
    return stored.status != model.DEPLOYMENT_FAILURE


async def deployment_with_a_used_id(plane: ClockedPlane) -> object:
    """The id of an old deployment with another commit: its history must stay as it was."""
    piped = plane.own.piped
    application = await plane.stores.applications.get(piped.application)
    again = new_deployment(application, piped.deployment)
    again.trigger.commit.hash = "badc0de"
    with pytest.raises(AlreadyExists):
        await plane.cases.deployment_reports.create(again, by=piped.caller)
    stored = await plane.stores.deployments.get(piped.deployment)
    return stored.trigger.commit.hash == "badc0de"


async def another_result_of_a_command(plane: ClockedPlane) -> object:
    """A late duplicate of a report turns the result that users have seen into another one."""
    piped = plane.own.piped
    for status, output in (
        (CommandStatus.SUCCEEDED, b"{}"),
        (CommandStatus.FAILED, b'{"evil": 1}'),
    ):
        result = CommandResult(piped.command, status, plane.unix, output=output)
        await plane.cases.commands.report_handled(result, by=piped.caller)
    stored = await plane.stores.commands.get(piped.command)
    return stored.status != CommandStatus.SUCCEEDED


async def log_lines_again(plane: ClockedPlane) -> object:
    piped, blocks = plane.own.piped, [LogBlock(index=1, log="one"), LogBlock(index=2, log="two")]
    run = StageRun(piped.deployment, "s1")
    for _ in range(3):
        await plane.cases.logs.append(run, blocks, by=piped.caller)
    part = await plane.cases.logs.stage_log(run, by=plane.own.user("Admin"))
    return [block.log for block in part.blocks] != ["one", "two"]


async def request_of_a_replaced_process(plane: ClockedPlane) -> object:
    """What an earlier process of a piped sends after another one has taken its lease."""
    caller, leases = plane.own.piped.caller, plane.cases.piped_leases
    epochs: list[int] = []
    for host in ("one", "two"):
        first, _ = await leases.acquire(lease.AcquirePipedLeaseRequest(host=host), by=caller)
        granted, _ = await leases.acquire(
            lease.AcquirePipedLeaseRequest(host=host, ticket=first.ticket, force=True), by=caller
        )
        epochs.append(granted.epoch)
    try:
        await leases.check(PipedCaller(caller.project, caller.piped, epoch=epochs[0]))
    except LeaseLost:
        return None
    return epochs


async def lease_with_a_used_ticket(plane: ClockedPlane) -> object:
    caller, leases = plane.own.piped.caller, plane.cases.piped_leases
    old, _ = await leases.acquire(lease.AcquirePipedLeaseRequest(host="one"), by=caller)
    new, _ = await leases.acquire(lease.AcquirePipedLeaseRequest(host="two"), by=caller)
    await leases.acquire(lease.AcquirePipedLeaseRequest(host="two", ticket=new.ticket), by=caller)
    try:
        again = lease.AcquirePipedLeaseRequest(host="one", ticket=old.ticket, force=True)
        response, _ = await leases.acquire(again, by=caller)
    except LeaseLost:
        return None
    return response.granted


async def deleted_key_of_a_piped(plane: ClockedPlane) -> object:
    piped, admin = plane.own.piped, plane.own.user("Admin")
    token = PipedToken("demo", piped.caller.piped, piped.key)
    assert await plane.cases.credentials.piped(token)
    plane.advance(timedelta(seconds=2))
    await plane.cases.pipeds.add_key(piped.caller.piped, by=admin)
    await plane.cases.pipeds.delete_old_keys(piped.caller.piped, by=admin)
    return await is_let_in(plane.cases.credentials.piped(token))


async def key_of_a_disabled_piped(plane: ClockedPlane) -> object:
    piped = plane.own.piped
    token = PipedToken("demo", piped.caller.piped, piped.key)
    assert await plane.cases.credentials.piped(token)
    await plane.cases.pipeds.disable(piped.caller.piped, by=plane.own.user("Admin"))
    return await is_let_in(plane.cases.credentials.piped(token))


async def disabled_api_key(plane: ClockedPlane) -> object:
    admin = plane.own.user("Admin")
    key = await plane.cases.api_keys.generate("short", APIKey.READ_WRITE, by=admin)
    assert await plane.cases.api_keys.verify(key)
    stored = next(k for k in await plane.cases.api_keys.list(by=admin) if k.name == "short")
    await plane.cases.api_keys.disable(stored.id, by=admin)
    return await is_let_in(plane.cases.api_keys.verify(key))


async def is_let_in(authentication: Awaitable[object]) -> bool:
    try:
        await authentication
    except Unauthenticated:
        return False
    return True


async def plan_preview_after_its_time(plane: ClockedPlane) -> object:
    """The result of a preview, asked for again long after the branch was discussed."""
    admin = plane.own.user("Admin")
    request = RequestPlanPreviewRequest(
        repo_remote_url="git@h:o/r.git",
        head_branch="b",
        head_commit="c",
        base_branch="main",
        timeout=60,
    )
    commands = await plane.cases.plan_previews.request(request, by=admin)
    for command in commands:
        stored = await plane.stores.commands.get(command)
        caller = PipedCaller("demo", stored.piped_id)
        done = CommandResult(command, CommandStatus.SUCCEEDED, plane.unix, output=b"{}")
        await plane.cases.commands.report_handled(done, by=caller)
    plane.advance(timedelta(days=2))
    try:
        return await plane.cases.plan_previews.results(commands, by=admin)
    except (Conflict, NotFound):
        return None


ATTACKS: dict[str, Attack] = {
    "a webhook is delivered again": webhook_again,
    "a webhook with a new delivery id": webhook_with_a_new_id,
    "a webhook with a new time stamp": webhook_with_a_new_time,
    "a webhook after its time": webhook_after_its_time,
    "a webhook to another project": webhook_to_another_project,
    "a webhook with another body": webhook_with_another_body,
    "a webhook signed with a secret that was rotated twice": webhook_after_two_rotations,
    "a webhook signed with a secret a day after its rotation": webhook_a_day_after_a_rotation,
    "a session after a new password": session_after_a_new_password,
    "a session after the operator reset the password": session_after_the_operator_reset_the_password,
    "a session after its time": session_after_its_time,
    "the CSRF token of another session": form_of_another_session,
    "the CSRF token of an earlier session of the same user": form_of_an_earlier_session,
    "the approval of a stage that has succeeded": approval_of_a_finished_stage,
    "the approval of a stage that has failed": approval_of_a_failed_stage,
    "the cancellation of a deployment that has ended": cancellation_of_a_finished_deployment,
    "the plan of a deployment that has ended": plan_of_a_finished_deployment,
    "another end of a deployment": another_end_of_a_deployment,
    "a deployment with the id of an old one": deployment_with_a_used_id,
    "another result of a command": another_result_of_a_command,
    "lines of a stage log": log_lines_again,
    "a request of a piped process that was replaced": request_of_a_replaced_process,
    "the ticket of an earlier request for a lease": lease_with_a_used_ticket,
    "a deleted key of a piped": deleted_key_of_a_piped,
    "the key of a disabled piped": key_of_a_disabled_piped,
    "a disabled API key": disabled_api_key,
    "the result of a plan preview after its time": plan_preview_after_its_time,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_replay_gains_nothing(plane: ClockedPlane, attack: Attack) -> None:
    assert not await attack(plane)


async def test_what_is_sent_for_the_first_time_works(plane: ClockedPlane) -> None:
    await recorded(plane)
    assert await is_signed_in(plane, plane.session("Viewer"))
    answer = await plane.submit("/settings/project/webhook", plane.session("Admin"))
    assert answer.status_code == 303
    await completed(plane, model.DEPLOYMENT_SUCCESS)
    # A repeated report of the same end is a retry, not an error.
    await completed(plane, model.DEPLOYMENT_SUCCESS)
