# SPDX-License-Identifier: Apache-2.0
"""Concurrency: what one request must not do, many at the same time must not do either.

Each attack races requests against each other and returns what it gained, which must be nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from pipecd.controlplane.auth.rbac import BUILT_IN_NAMES
from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.controlplane.usecases.sessions import ATTEMPTS_PER_MINUTE
from pipecd.model.command import CommandStatus
from pipecd.model.document import from_json
from pipecd.model.errors import PipecdError, Unauthenticated
from pipecd.proto.model import deployment_pb2 as model
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, Application
from pipecd.proto.service import lease_pb2 as lease
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.secrets.standardwebhook import signed_headers
from pipecd.wire.credentials import PipedToken
from servers.clocked_plane import PASSWORD, ClockedPlane, open_clocked_plane
from servers.control_plane import ServedControlPlane, start_control_plane
from servers.tenants import Tenant, add_tenant, application_draft, new_deployment

Attack = Callable[[ClockedPlane], Awaitable[object]]
MANY = 20
POLICIES = parse_policies("resources=application;actions=get")


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ClockedPlane]:
    async with open_clocked_plane(tmp_path) as plane:
        yield plane


async def race(requests: Iterable[Awaitable[object]]) -> list[object]:
    """Runs all requests at the same time; returns the results of those that were not refused."""
    results = await asyncio.gather(*requests, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, PipecdError):
            raise result
    return [result for result in results if not isinstance(result, PipecdError)]


async def group_with_two_roles(plane: ClockedPlane) -> object:
    """A group gets the role of whoever comes first, so a second one must not be stored."""
    admin, roles = plane.own.user("Admin"), ("Viewer", "Editor", "Admin") * 7
    added = await race(plane.cases.roles.add_group("team", role, by=admin) for role in roles)
    stored = (await plane.stores.projects.get("demo")).user_groups
    return len(added) != 1 or len(stored) != 1


async def role_added_twice(plane: ClockedPlane) -> object:
    admin = plane.own.user("Admin")
    added = await race(plane.cases.roles.add("ops", POLICIES, by=admin) for _ in range(MANY))
    stored = (await plane.stores.projects.get("demo")).rbac_roles
    return len(added) != 1 or len(stored) != 1


async def lost_roles(plane: ClockedPlane) -> object:
    """An edit that another one overwrites could bring back a role that was taken away."""
    admin, names = plane.own.user("Admin"), [f"role-{n}" for n in range(MANY)]
    await race(plane.cases.roles.add(name, POLICIES, by=admin) for name in names)
    stored = {role.name for role in (await plane.stores.projects.get("demo")).rbac_roles}
    return set(names) - stored


async def resurrected_role(plane: ClockedPlane) -> object:
    admin = plane.own.user("Admin")
    await plane.cases.roles.add("old", POLICIES, by=admin)
    names = [f"role-{n}" for n in range(MANY)]
    await race(
        [
            plane.cases.roles.delete("old", by=admin),
            *(plane.cases.roles.add(name, POLICIES, by=admin) for name in names),
            plane.cases.projects.disable_static_admin(by=admin),
        ]
    )
    stored = {role.name for role in (await plane.stores.projects.get("demo")).rbac_roles}
    return stored != set(names) or "old" in stored


async def role_with_a_built_in_name(plane: ClockedPlane) -> object:
    admin = plane.own.user("Admin")
    return await race(
        plane.cases.roles.add(name, POLICIES, by=admin) for name in sorted(BUILT_IN_NAMES) * 5
    )


async def too_many_keys_of_a_piped(plane: ClockedPlane) -> object:
    """A third key would be one that `delete the old keys` leaves to whoever made it."""
    id_, admin = plane.own.piped.caller.piped, plane.own.user("Admin")
    await race(plane.cases.pipeds.add_key(id_, by=admin) for _ in range(6))
    return len((await plane.stores.pipeds.get(id_)).keys) > 2


async def key_that_is_used_while_it_is_deleted(plane: ClockedPlane) -> object:
    piped, admin = plane.own.piped, plane.own.user("Admin")
    token = PipedToken("demo", piped.caller.piped, piped.key)
    plane.advance(timedelta(seconds=2))
    await plane.cases.pipeds.add_key(piped.caller.piped, by=admin)
    await race(
        [
            *(plane.cases.credentials.piped(token) for _ in range(MANY)),
            plane.cases.pipeds.delete_old_keys(piped.caller.piped, by=admin),
            *(plane.cases.credentials.piped(token) for _ in range(MANY)),
        ]
    )
    return await race([plane.cases.credentials.piped(token)])


async def piped_that_calls_while_it_is_disabled(plane: ClockedPlane) -> object:
    piped = plane.own.piped
    token = PipedToken("demo", piped.caller.piped, piped.key)
    await race(
        [
            *(plane.cases.credentials.piped(token) for _ in range(MANY)),
            plane.cases.pipeds.disable(piped.caller.piped, by=plane.own.user("Admin")),
            *(plane.cases.credentials.piped(token) for _ in range(MANY)),
        ]
    )
    return await race([plane.cases.credentials.piped(token)])


async def api_key_that_is_used_while_it_is_disabled(plane: ClockedPlane) -> object:
    admin = plane.own.user("Admin")
    key = await plane.cases.api_keys.generate("short", APIKey.READ_WRITE, by=admin)
    stored = next(k for k in await plane.cases.api_keys.list(by=admin) if k.name == "short")
    await race(
        [
            *(plane.cases.api_keys.verify(key) for _ in range(MANY)),
            plane.cases.api_keys.disable(stored.id, by=admin),
            *(plane.cases.api_keys.verify(key) for _ in range(MANY)),
        ]
    )
    return await race([plane.cases.api_keys.verify(key)])


async def session_that_is_used_while_the_admin_is_disabled(plane: ClockedPlane) -> object:
    admin = plane.own.user("Admin")
    token = (await plane.cases.sessions.sign_in("demo", "root", PASSWORD)).token
    await race(
        [
            *(plane.cases.sessions.user(token) for _ in range(MANY)),
            plane.cases.projects.set_static_admin("root", "another password", by=admin),
            *(plane.cases.sessions.user(token) for _ in range(MANY)),
        ]
    )
    return await race([plane.cases.sessions.user(token)])


async def guesses_at_the_same_time(plane: ClockedPlane) -> object:
    """More passwords than the limit are tried before the first wrong one is counted."""
    tried: list[object] = []

    async def guess(number: int) -> None:
        try:
            await plane.cases.sessions.sign_in("demo", "root", f"guess-{number}")
        except Unauthenticated:
            tried.append(number)

    await race(guess(number) for number in range(5 * ATTEMPTS_PER_MINUTE))
    return len(tried) > ATTEMPTS_PER_MINUTE


async def wrong_keys_at_the_same_time(plane: ClockedPlane) -> object:
    piped, tried = plane.own.piped.caller.piped, list[int]()

    async def guess(number: int) -> None:
        try:
            await plane.cases.credentials.piped(PipedToken("demo", piped, f"guess-{number}"))
        except Unauthenticated:
            tried.append(number)

    await race(guess(number) for number in range(50))
    return len(tried) > 10


async def deployments_with_one_id(plane: ClockedPlane) -> object:
    piped = plane.own.piped
    application = await plane.stores.applications.get(piped.application)
    drafts = [new_deployment(application, "one-id") for _ in range(MANY)]
    for number, draft in enumerate(drafts):
        draft.trigger.commit.hash = f"commit-{number}"
    made = await race(
        plane.cases.deployment_reports.create(draft, by=piped.caller) for draft in drafts
    )
    return len(made) != 1


async def deployments_that_follow_the_same_one(plane: ClockedPlane) -> object:
    """Two deployments of an application that both believe to be the next one."""
    piped = plane.own.piped
    application = await plane.stores.applications.get(piped.application)
    drafts = [new_deployment(application, f"next-{number}") for number in range(MANY)]
    made = await race(
        plane.cases.deployment_reports.create(draft, by=piped.caller, follows=piped.deployment)
        for draft in drafts
    )
    return len(made) != 1


async def two_ends_of_a_deployment(plane: ClockedPlane) -> object:
    piped = plane.own.piped
    ends = (model.DEPLOYMENT_SUCCESS, model.DEPLOYMENT_FAILURE, model.DEPLOYMENT_CANCELLED)

    async def end(status: model.DeploymentStatus.ValueType) -> int:
        report = rpc.ReportDeploymentCompletedRequest(
            deployment_id=piped.deployment, status=status, completed_at=1
        )
        await plane.cases.deployment_reports.report_completed(report, by=piped.caller)
        return status

    accepted = set(await race(end(status) for status in ends))
    stored = (await plane.stores.deployments.get(piped.deployment)).status
    return accepted != {stored}


async def stage_that_starts_after_its_end(plane: ClockedPlane) -> object:
    """Reports of one stage that overtake each other, such that it could be approved again."""
    piped = plane.own.piped
    statuses = (model.STAGE_SUCCESS, model.STAGE_RUNNING, model.STAGE_NOT_STARTED_YET) * 5
    await race(
        plane.cases.deployment_reports.report_stage_status(
            rpc.ReportStageStatusChangedRequest(
                deployment_id=piped.deployment, stage_id="s1", status=status, completed_at=1
            ),
            by=piped.caller,
        )
        for status in statuses
    )
    (stage,) = (await plane.stores.deployments.get(piped.deployment)).stages
    return stage.status != model.STAGE_SUCCESS


async def approval_while_the_deployment_ends(plane: ClockedPlane) -> object:
    """Once the end is stored, no approval is accepted any more."""
    piped, admin = plane.own.piped, plane.own.user("Admin")
    report = rpc.ReportDeploymentCompletedRequest(
        deployment_id=piped.deployment, status=model.DEPLOYMENT_CANCELLED, completed_at=1
    )
    approvals = (
        plane.cases.deployments.approve(piped.deployment, "s1", by=admin) for _ in range(MANY)
    )
    await race(
        [plane.cases.deployment_reports.report_completed(report, by=piped.caller), *approvals]
    )
    return await race([plane.cases.deployments.approve(piped.deployment, "s1", by=admin)])


async def double_click_on_a_form(plane: ClockedPlane) -> object:
    """A form that is submitted many times at once approves once."""
    piped, token = plane.own.piped, plane.session("Admin")
    path = f"/deployments/{piped.deployment}/stages/s1/approve"
    answers = await asyncio.gather(*(plane.submit(path, token) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {303}
    unhandled = await plane.stores.commands.list_unhandled(piped.caller.piped)
    return len([command for command in unhandled if command.HasField("approve_stage")]) != 1


async def two_results_of_a_command(plane: ClockedPlane) -> object:
    piped = plane.own.piped

    async def report(status: CommandStatus) -> None:
        result = CommandResult(piped.command, status, 1, {"status": status.name})
        await plane.cases.commands.report_handled(result, by=piped.caller)

    await race(report(status) for status in (CommandStatus.SUCCEEDED, CommandStatus.FAILED) * 5)
    stored = await plane.stores.commands.get(piped.command)
    return stored.metadata["status"] != CommandStatus(stored.status).name


async def lost_metadata(plane: ClockedPlane) -> object:
    piped, names = plane.own.piped, [f"key-{n}" for n in range(MANY)]
    await race(
        plane.cases.deployment_reports.save_metadata(piped.deployment, {name: "v"}, by=piped.caller)
        for name in names
    )
    return set(names) - set((await plane.stores.deployments.get(piped.deployment)).metadata)


async def two_processes_of_a_piped(plane: ClockedPlane) -> object:
    caller, leases = plane.own.piped.caller, plane.cases.piped_leases

    async def acquire(number: int) -> bool:
        host = f"host-{number}"
        first, _ = await leases.acquire(lease.AcquirePipedLeaseRequest(host=host), by=caller)
        again = lease.AcquirePipedLeaseRequest(host=host, ticket=first.ticket)
        return (await leases.acquire(again, by=caller))[0].granted

    granted = [result for result in await race(acquire(n) for n in range(10)) if result]
    return len(granted) > 1


async def project_that_is_added_twice(plane: ClockedPlane) -> object:
    """The password of the one who comes second must not open the project of the first."""
    admins = [StaticAdmin("root", f"password-{number}") for number in range(6)]
    made = await race(plane.cases.projects.add("fresh", "", admin) for admin in admins)
    opened = await race(
        plane.cases.sessions.sign_in("fresh", admin.username, admin.password) for admin in admins
    )
    return len(made) != 1 or len(opened) != 1


async def webhook_that_is_delivered_at_the_same_time(plane: ClockedPlane) -> object:
    await plane.cases.webhooks.rotate(by=plane.own.user("Admin"))
    (secret,) = await plane.cases.webhooks.secrets_of("demo")
    body = b'{"repository": "git@h:o/r.git", "branch": "main"}'
    headers = signed_headers(secret, "delivery-1", plane.unix, body)
    answers = await asyncio.gather(
        *(plane.http.post("/webhooks/demo", content=body, headers=headers) for _ in range(MANY))
    )
    return len([answer for answer in answers if answer.status_code == 202]) != 1


async def application_that_is_deleted_while_it_is_used(plane: ClockedPlane) -> object:
    """Once the deletion is stored, the application gets no further command."""
    piped, admin = plane.own.piped, plane.own.user("Admin")
    draft = application_draft("gone", piped.caller.piped)
    id_ = await plane.cases.applications.add(draft, by=admin)
    await race(
        [
            *(plane.cases.applications.sync(id_, by=admin) for _ in range(5)),
            plane.cases.applications.delete(id_, by=admin),
            *(plane.cases.applications.sync(id_, by=admin) for _ in range(5)),
        ]
    )
    return await race([plane.cases.applications.sync(id_, by=admin)])


async def sign_ins_with_one_code(plane: ClockedPlane) -> object:
    """The code of a callback opens one session, however many callbacks bring it."""
    codes, expires_at = plane.stores.used_codes, plane.unix + 600
    accepted = await race(codes.add("hash-of-code", expires_at=expires_at) for _ in range(MANY))
    return accepted.count(True) != 1


async def sessions_that_are_ended_while_they_are_used(plane: ClockedPlane) -> object:
    admin, token = plane.own.user("Admin"), plane.session("Viewer")
    plane.advance(timedelta(seconds=1))
    await race(
        [
            *(plane.cases.sessions.user(token) for _ in range(MANY)),
            plane.cases.sessions.end_all(by=admin),
            *(plane.cases.sessions.user(token) for _ in range(MANY)),
        ]
    )
    return await race([plane.cases.sessions.user(token)])


ATTACKS: dict[str, Attack] = {
    "sign-ins with one code": sign_ins_with_one_code,
    "a session that is used while all are ended": sessions_that_are_ended_while_they_are_used,
    "a group gets several roles at once": group_with_two_roles,
    "a role is added several times": role_added_twice,
    "roles that are added at once": lost_roles,
    "a role is deleted while others are added": resurrected_role,
    "roles with the names of built-in ones": role_with_a_built_in_name,
    "more keys of a piped than two": too_many_keys_of_a_piped,
    "a key that is used while it is deleted": key_that_is_used_while_it_is_deleted,
    "a piped that calls while it is disabled": piped_that_calls_while_it_is_disabled,
    "an API key that is used while it is disabled": api_key_that_is_used_while_it_is_disabled,
    "a session that is used while the password changes": session_that_is_used_while_the_admin_is_disabled,
    "passwords that are guessed at once": guesses_at_the_same_time,
    "keys that are guessed at once": wrong_keys_at_the_same_time,
    "deployments with one id": deployments_with_one_id,
    "deployments that follow the same one": deployments_that_follow_the_same_one,
    "a deployment that ends in several ways": two_ends_of_a_deployment,
    "a stage whose reports overtake each other": stage_that_starts_after_its_end,
    "an approval while the deployment ends": approval_while_the_deployment_ends,
    "a form that is submitted many times": double_click_on_a_form,
    "a command with two results": two_results_of_a_command,
    "metadata that is saved at once": lost_metadata,
    "two processes of a piped": two_processes_of_a_piped,
    "a project that is added twice": project_that_is_added_twice,
    "a webhook that is delivered many times at once": webhook_that_is_delivered_at_the_same_time,
    "an application that is deleted while it is used": application_that_is_deleted_while_it_is_used,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_race_gains_nothing(plane: ClockedPlane, attack: Attack) -> None:
    assert not await attack(plane)


async def test_requests_that_do_not_conflict_all_succeed(plane: ClockedPlane) -> None:
    admin = plane.own.user("Admin")
    groups = [plane.cases.roles.add_group(f"team-{n}", "Viewer", by=admin) for n in range(MANY)]
    assert len(await race(groups)) == MANY
    assert len((await plane.stores.projects.get("demo")).user_groups) == MANY


# Readers of lists of all applications, which share the documents that are cached.
ATTACKS_ON_SHARED_DOCUMENTS = {
    **{
        f"the page {path}": path
        for path in (
            "/overview", "/applications", "/applications?q=web&status=out-of-sync",
            "/applications/drift", "/applications/add", "/search?q=web", "/settings/piped",
            "/insights", "/plan-previews", "/deployment-traces",
        )
    },
    "the list of REST": "/api/v1/applications",
    "the application of REST": "/api/v1/applications/{id}",
}  # fmt: skip


@pytest.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[ServedControlPlane, Tenant]]:
    """A control plane whose application differs from Git."""
    async with start_control_plane(tmp_path_factory.mktemp("shared")) as plane:
        tenant = await add_tenant(plane.cases, "demo")

        def differ(application: Application) -> None:
            application.sync_state.status = OUT_OF_SYNC
            application.sync_state.timestamp = 1
            application.sync_state.reason = "- replicas: 1\n+ replicas: 2"
            application.labels["env"] = "prod"

        await plane.running.stores.applications.update(tenant.piped.application, differ)
        yield plane, tenant


@pytest.mark.parametrize(
    "path", ATTACKS_ON_SHARED_DOCUMENTS.values(), ids=ATTACKS_ON_SHARED_DOCUMENTS
)
async def test_no_reader_changes_what_others_read(
    path: str, served: tuple[ServedControlPlane, Tenant]
) -> None:
    plane, tenant = served
    applications = plane.running.stores.applications
    # Every document is cached now, and stays what its text says.
    assert len((await applications.list(ApplicationFilter("demo"))).items) == 2
    headers = {
        "cookie": f"token={plane.cases.sessions.issue(tenant.user('Admin'))}",
        "authorization": f"Bearer {tenant.api_key}",
    }
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}", headers=headers) as http:
        answer = await http.get(path.format(id=tenant.piped.application))
        assert answer.status_code == 200
    cached = applications._cache._by_text
    assert len(cached) >= 2
    for text, entry in cached.items():
        assert entry.document == from_json(text, Application)
