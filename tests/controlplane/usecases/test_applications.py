# SPDX-License-Identifier: Apache-2.0
"""Applications: registration, changes, lists and permissions."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model import project_pb2 as project
from pipecd.proto.model.application_pb2 import (
    OUT_OF_SYNC,
    SYNCED,
    Application,
    ApplicationDeploymentReference,
    ApplicationSyncState,
)
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import (
    DEPLOYMENT_CANCELLED,
    DEPLOYMENT_SUCCESS,
    Deployment,
    DeployTargets,
)
from pipecd.proto.service import piped_pb2 as rpc


async def test_an_application_takes_its_repository_from_the_piped(application: Application) -> None:
    assert application.git_path.repo.remote == "git@github.com:shop/site.git"
    assert application.git_path.url == "https://github.com/shop/site/tree/main/apps/cart"
    assert application.cloud_provider == application.platform_provider == "kubernetes-default"
    assert application.created_at > 0


async def test_a_repository_that_is_not_in_the_piped_configuration_is_refused(
    cases: UseCases, draft: Application, admin: User
) -> None:
    draft.git_path.repo.id = "elsewhere"
    with pytest.raises(
        NotFound,
        match=r"The requested repository is not found in the Piped configuration; piped .+ has ",
    ):
        await cases.applications.add(draft, by=admin)


async def test_an_application_cannot_be_added_to_a_piped_of_another_project(
    cases: UseCases, draft: Application, stranger: User
) -> None:
    with pytest.raises(ForeignProject, match="Requested piped does not belong to your project"):
        await cases.applications.add(draft, by=stranger)


async def test_a_name_that_can_be_added_can_be_deployed(
    *,
    cases: UseCases,
    draft: Application,
    new_deployment: Callable[[], Deployment],
    piped: PipedCaller,
    admin: User,
) -> None:
    draft.name = "n" * 37
    with pytest.raises(UserMistake, match="has at most 36 characters, this one has 37") as refused:
        await cases.applications.add(draft, by=admin)
    assert "choose a shorter name" in refused.value.hint
    draft.name = "n" * 36
    await cases.applications.add(draft, by=admin)
    deployment = new_deployment()
    deployment.application_name = draft.name
    await cases.deployment_reports.create(deployment, by=piped)


async def test_fields_that_a_draft_cannot_set_are_ignored(
    cases: UseCases, draft: Application, admin: User
) -> None:
    draft.project_id, draft.id, draft.deploying = "another", "chosen", True
    id = await cases.applications.add(draft, by=admin)
    added = await cases.applications.get(id, by=admin)
    assert (added.project_id, added.deploying, id != "chosen") == ("shop", False, True)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(lambda c, id, by: c.get(id, by=by), id="read"),
        pytest.param(lambda c, id, by: c.sync(id, by=by), id="synced"),
        pytest.param(lambda c, id, by: c.enable(id, by=by), id="enabled"),
        pytest.param(lambda c, id, by: c.disable(id, by=by), id="disabled"),
        pytest.param(lambda c, id, by: c.delete(id, by=by), id="deleted"),
        pytest.param(lambda c, id, by: c.rename_config_file([id], "x", by=by), id="renamed"),
        pytest.param(lambda c, id, by: c.set_deploy_targets(id, {}, by=by), id="retargeted"),
        pytest.param(
            lambda c, id, by: c.update(id, ApplicationUpdate("p", "", ""), by=by), id="updated"
        ),
    ],
)
async def test_an_application_of_another_project_cannot_be(
    cases: UseCases,
    application: Application,
    stranger: User,
    what: Callable[..., Awaitable[object]],
) -> None:
    with pytest.raises(ForeignProject):
        await what(cases.applications, application.id, stranger)


async def test_a_viewer_can_read_but_not_change(
    cases: UseCases, application: Application, viewer: User
) -> None:
    assert (await cases.applications.get(application.id, by=viewer)).name == "cart"
    with pytest.raises(Denied, match="Permission Denied"):
        await cases.applications.sync(application.id, by=viewer)


async def test_a_read_only_api_key_can_read_but_not_change(
    cases: UseCases, application: Application, program: ApiKeyCaller
) -> None:
    reader = replace(program, may_write=False)
    assert (await cases.applications.get(application.id, by=reader)).name == "cart"
    with pytest.raises(Denied, match="Permission denied"):
        await cases.applications.sync(application.id, by=reader)


async def test_a_sync_becomes_a_command_and_a_signal_for_the_piped(
    cases: UseCases, bus: MemoryBus, application: Application, program: ApiKeyCaller
) -> None:
    async with bus.subscribe() as signals:
        id = await cases.applications.sync(application.id, SyncStrategy.PIPELINE, by=program)
        received = await anext(signals)
    command = await cases.commands.get(id, by=program)
    assert received == Signal(Topic.COMMAND, id, "shop", application.piped_id)
    assert (command.type, command.commander) == (Command.SYNC_APPLICATION, "API key ci")
    assert command.sync_application.sync_strategy == SyncStrategy.PIPELINE


async def test_a_disabled_application_is_neither_synced_nor_listed_for_its_piped(
    cases: UseCases, application: Application, admin: User, piped: PipedCaller
) -> None:
    assert [a.id for a in await cases.applications.list_enabled(by=piped)] == [application.id]
    await cases.applications.disable(application.id, by=admin)
    assert await cases.applications.list_enabled(by=piped) == ()
    with pytest.raises(Conflict):
        await cases.applications.sync(application.id, by=admin)


async def test_deleting_again_changes_nothing(
    cases: UseCases, application: Application, admin: User, advance: Callable[[float], None]
) -> None:
    await cases.applications.delete(application.id, by=admin)
    deleted = await cases.applications.get(application.id, by=admin)
    advance(60)
    await cases.applications.delete(application.id, by=admin)
    assert await cases.applications.get(application.id, by=admin) == deleted


async def test_a_deleted_application_cannot_be_changed(
    cases: UseCases, application: Application, admin: User, piped: PipedCaller
) -> None:
    await cases.applications.delete(application.id, by=admin)
    with pytest.raises(UserMistake):
        await cases.applications.enable(application.id, by=admin)
    with pytest.raises(UserMistake):
        await cases.application_reports.report_deploying(application.id, True, by=piped)
    assert (await cases.applications.list(ApplicationFilter("shop"), by=admin)).items == ()


async def test_moving_an_application_wakes_both_pipeds_and_changes_its_owner_at_once(
    cases: UseCases,
    bus: MemoryBus,
    application: Application,
    admin: User,
    piped: PipedCaller,
    other_piped: PipedCaller,
) -> None:
    to = ApplicationUpdate(other_piped.piped, "prod", "app.yaml", {"k": DeployTargets()})
    async with bus.subscribe() as signals:
        await cases.applications.update(application.id, to, by=admin)
        received = {(await anext(signals)).piped, (await anext(signals)).piped}
    assert received == {piped.piped, other_piped.piped}
    await cases.application_reports.report_deploying(application.id, True, by=other_piped)
    with pytest.raises(Denied, match="requested application doesn't belong to the piped"):
        await cases.application_reports.report_deploying(application.id, False, by=piped)
    moved = await cases.applications.get(application.id, by=admin)
    assert moved.git_path.config_filename == "app.yaml"
    assert list(moved.deploy_targets_by_plugin) == ["k"]


async def test_config_files_are_renamed_for_all_applications_or_none(
    cases: UseCases, application: Application, admin: User
) -> None:
    with pytest.raises(NotFound):
        await cases.applications.rename_config_file([application.id, "gone"], "new", by=admin)
    assert not (await cases.applications.get(application.id, by=admin)).git_path.config_filename
    await cases.applications.rename_config_file([application.id], "new", by=admin)
    assert (
        await cases.applications.get(application.id, by=admin)
    ).git_path.config_filename == "new"


@pytest.fixture
async def team(cases: UseCases, admin: User) -> User:
    """A user whose role covers only applications with the label env:dev."""
    scoped = project.ProjectRBACResource(
        type=project.ProjectRBACResource.APPLICATION, labels={"env": "dev"}
    )
    policy = project.ProjectRBACPolicy(resources=[scoped], actions=[project.ProjectRBACPolicy.ALL])
    await cases.roles.add("dev team", [policy], by=admin)
    return User("shop", "tom", ("dev team",))


async def test_a_policy_with_labels_restricts_what_is_listed_and_changed(
    cases: UseCases, draft: Application, admin: User, team: User
) -> None:
    dev = await cases.applications.add(draft, by=team)
    draft.labels["env"] = "prod"
    with pytest.raises(Denied):
        await cases.applications.add(draft, by=team)
    prod = await cases.applications.add(draft, by=admin)
    listed = await cases.applications.list(ApplicationFilter("shop"), by=team)
    assert [a.id for a in listed.items] == [dev]
    await cases.applications.disable(dev, by=team)
    with pytest.raises(Denied):
        await cases.applications.get(prod, by=team)


async def test_a_page_is_filled_with_visible_applications(
    cases: UseCases, draft: Application, admin: User, team: User
) -> None:
    for number in range(9):
        draft.labels["env"] = "prod" if number % 3 else "dev"
        await cases.applications.add(draft, by=admin)
    first = await cases.applications.list(ApplicationFilter("shop"), PageRequest(size=2), by=team)
    rest = await cases.applications.list(
        ApplicationFilter("shop"), PageRequest(size=2, cursor=first.cursor), by=team
    )
    assert len(first.items) >= 2
    assert len({a.id for a in (*first.items, *rest.items)}) == 3
    assert rest.cursor == ""


async def test_another_project_cannot_be_listed(cases: UseCases, admin: User) -> None:
    with pytest.raises(Denied):
        await cases.applications.list(ApplicationFilter("declared"), by=admin)


async def test_an_application_deploys_only_while_a_deployment_is_not_completed(
    cases: UseCases,
    application: Application,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
) -> None:
    reports, deployments = cases.application_reports, cases.deployment_reports

    async def is_deploying() -> bool:
        return (await cases.applications.get(application.id, by=piped)).deploying

    # A late report of a deployment that has ended long ago.
    await reports.report_deploying(application.id, True, by=piped)
    assert not await is_deploying()
    deployment = new_deployment()
    await deployments.create(deployment, by=piped)
    await reports.report_deploying(application.id, True, by=piped)
    assert await is_deploying()
    plan = rpc.ReportDeploymentPlannedRequest(deployment_id=deployment.id)
    await deployments.report_planned(plan, by=piped)
    # Another late report: the deployment goes on.
    await reports.report_deploying(application.id, False, by=piped)
    assert await is_deploying()
    completed = rpc.ReportDeploymentCompletedRequest(
        deployment_id=deployment.id, status=DEPLOYMENT_SUCCESS, completed_at=9
    )
    await deployments.report_completed(completed, by=piped)
    assert not await is_deploying()


async def test_an_application_deploys_for_its_own_deployments_only(
    cases: UseCases,
    application: Application,
    piped: PipedCaller,
    draft: Application,
    admin: User,
    new_deployment: Callable[[], Deployment],
) -> None:
    reports, deployments = cases.application_reports, cases.deployment_reports
    draft.name = "shop"
    other = await cases.applications.add(draft, by=admin)
    for id in (application.id, other):
        first, second = new_deployment(), new_deployment()
        for each in (first, second):
            each.application_id = id
            await deployments.create(each, by=piped)
        if id == other:
            plan = rpc.ReportDeploymentPlannedRequest(deployment_id=first.id)
            await deployments.report_planned(plan, by=piped)
        else:
            # The first one still waits when the second one has ended.
            completed = rpc.ReportDeploymentCompletedRequest(
                deployment_id=second.id, status=DEPLOYMENT_CANCELLED, completed_at=9
            )
            await deployments.report_completed(completed, by=piped)

    async def deploying(reported: bool) -> list[bool]:
        for id in (application.id, other):
            await reports.report_deploying(id, reported, by=piped)
        return [
            (await cases.applications.get(i, by=piped)).deploying for i in (application.id, other)
        ]

    assert await deploying(False) == [False, True]
    assert await deploying(True) == [True, True]
    assert await deploying(False) == [False, True]


@pytest.mark.parametrize(
    ("epoch", "expected"), [(3, OUT_OF_SYNC), (0, SYNCED)], ids=["of ours", "of upstream"]
)
async def test_a_late_sync_state_of_a_piped(
    cases: UseCases, application: Application, piped: PipedCaller, epoch: int, expected: int
) -> None:
    reports, caller = cases.application_reports, replace(piped, epoch=epoch)
    for status, timestamp in ((SYNCED, 5), (OUT_OF_SYNC, 6), (SYNCED, 5)):
        state = ApplicationSyncState(status=status, timestamp=timestamp)
        await reports.report_sync_state(application.id, state, by=caller)
    stored = await cases.applications.get(application.id, by=piped)
    assert stored.sync_state.status == expected


async def test_the_end_of_a_very_long_reason_is_not_stored(
    cases: UseCases, application: Application, piped: PipedCaller
) -> None:
    state = ApplicationSyncState(
        status=OUT_OF_SYNC, reason="r" * 3_000_000, short_reason="s" * 9000, timestamp=1
    )
    await cases.application_reports.report_sync_state(application.id, state, by=piped)
    stored = (await cases.applications.get(application.id, by=piped)).sync_state
    assert stored.reason == "r" * 262_144 + "\n... (omitted 2,737,856 more characters)"
    assert stored.short_reason == "s" * 4096 + "\n... (omitted 4,904 more characters)"


async def test_reports_of_a_piped_are_stored(
    cases: UseCases,
    application: Application,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
) -> None:
    reports = cases.application_reports
    await cases.deployment_reports.create(new_deployment(), by=piped)
    reference = ApplicationDeploymentReference(
        deployment_id="d1", trigger=new_deployment().trigger, started_at=1
    )
    await reports.report_sync_state(
        application.id, ApplicationSyncState(status=SYNCED, timestamp=1), by=piped
    )
    await reports.report_deploying(application.id, True, by=piped)
    await reports.report_most_recent_deployment(
        application.id, DeploymentStatus.SUCCESS, reference, by=piped
    )
    await reports.report_most_recent_deployment(
        application.id, DeploymentStatus.FAILURE, reference, by=piped
    )
    stored = await cases.applications.get(application.id, by=piped)
    assert (stored.sync_state.status, stored.deploying) == (1, True)
    assert not stored.HasField("most_recently_triggered_deployment")
    recent = await reports.most_recent_deployment(
        application.id, DeploymentStatus.SUCCESS, by=piped
    )
    assert recent == reference


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(DeploymentStatus.PENDING, id="no deployment was triggered yet"),
        pytest.param(DeploymentStatus.FAILURE, id="failed deployments are not stored"),
    ],
)
async def test_the_most_recent_deployment_is_not_found(
    cases: UseCases, application: Application, piped: PipedCaller, status: DeploymentStatus
) -> None:
    with pytest.raises(NotFound, match="deployment is not found"):
        await cases.application_reports.most_recent_deployment(application.id, status, by=piped)


async def test_configurations_are_updated_if_all_applications_belong_to_the_piped(
    cases: UseCases, application: Application, piped: PipedCaller, other_piped: PipedCaller
) -> None:
    info = ApplicationInfo(id=application.id, name="basket", description="d", labels={"a": "b"})
    with pytest.raises(Denied):
        await cases.application_reports.update_configurations([info], by=other_piped)
    await cases.application_reports.update_configurations([info], by=piped)
    stored = await cases.applications.get(application.id, by=piped)
    assert (stored.name, stored.description, dict(stored.labels)) == ("basket", "d", {"a": "b"})


async def test_an_application_keeps_its_name_if_the_one_in_git_is_too_long(
    cases: UseCases, application: Application, piped: PipedCaller
) -> None:
    info = ApplicationInfo(id=application.id, name="n" * 37, description="d")
    await cases.application_reports.update_configurations([info], by=piped)
    stored = await cases.applications.get(application.id, by=piped)
    assert (stored.name, stored.description) == (application.name, "d")


async def test_unregistered_applications_of_all_pipeds_are_listed_by_path(
    cases: UseCases, viewer: User, piped: PipedCaller, other_piped: PipedCaller
) -> None:
    def info(path: str) -> ApplicationInfo:
        return ApplicationInfo(name=path, repo_id="site", path=path, piped_id="another-piped")

    reports = cases.application_reports
    await reports.report_unregistered([info("b/old")], by=piped)
    await reports.report_unregistered([info("c/app"), info("a/app")], by=piped)
    await reports.report_unregistered([info("b/app")], by=other_piped)
    listed = await reports.list_unregistered(by=viewer)
    assert [i.path for i in listed] == ["a/app", "b/app", "c/app"]
    assert [i.piped_id for i in listed] == [piped.piped, other_piped.piped, piped.piped]
    await reports.report_unregistered([], by=piped)
    assert [i.path for i in await reports.list_unregistered(by=viewer)] == ["b/app"]


async def test_the_error_of_an_unknown_application_names_it(
    cases: UseCases, piped: PipedCaller, admin: User, stores: Stores
) -> None:
    del stores
    with pytest.raises(NotFound, match="Entity was not found to get application nope"):
        await cases.application_reports.report_deploying("nope", True, by=piped)
    with pytest.raises(NotFound, match=r"^Application is not found$"):
        await cases.applications.get("nope", by=admin)
