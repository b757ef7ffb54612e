# SPDX-License-Identifier: Apache-2.0
"""A role with labels gives access to the objects that have them, and to nothing about others."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from pipecd.controlplane.api.handlers import MAX_PAGE_SIZE, page_size
from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.command import PREVIEW_COUNTS_KEY, CommandStatus
from pipecd.model.document import to_json
from pipecd.model.errors import Denied
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import PipelineStage
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest
from servers.control_plane import ServedControlPlane, start_control_plane
from servers.tenants import REPOSITORY, application_draft, new_deployment

POLICIES = "resources=application{env:dev},deployment{env:dev},event{env:dev};actions=*"
DEVELOPER = User("demo", "dana", ("Developer",))
# A role for deployments only, whose user follows the commands that they send.
RELEASER = User("demo", "rene", ("Releaser",))


@dataclass(frozen=True)
class Objects:
    """The ids of an application with these labels, and of what belongs to it."""

    env: str
    piped: PipedCaller
    application: str
    deployment: str
    sync: str
    cancel: str
    preview: str


@dataclass(frozen=True)
class Scene:
    cases: UseCases
    dev: Objects
    prod: Objects


async def add_preview(
    cases: UseCases, piped: PipedCaller, env: str, result: PlanPreviewCommandResult
) -> str:
    """Adds the command of a plan preview, and its result."""
    merge = Command.BuildPlanPreview(
        repository_id=REPOSITORY.id, head_branch=f"branch-{env}", head_commit="c" * 40,
        base_branch="main", timeout=60,
    )  # fmt: skip
    command = Command(
        type=Command.BUILD_PLAN_PREVIEW, piped_id=piped.piped, project_id="demo",
        commander="pipectl", build_plan_preview=merge,
    )  # fmt: skip
    id_ = await cases.commands.add(command)
    handled_at = to_unix(utc_now())
    report = CommandResult(
        id_, CommandStatus.SUCCEEDED, handled_at, output=to_json(result).encode()
    )
    await cases.commands.report_handled(report, by=piped)
    return id_


async def add_objects(plane: ServedControlPlane, piped: PipedCaller, env: str) -> Objects:
    cases = plane.cases
    draft = application_draft(f"web-{env}", piped.piped)
    draft.labels["env"] = env
    id_ = await cases.applications.add(draft, by=plane.admin)
    application = await cases.applications.get(id_, by=plane.admin)
    deployment = new_deployment(application, f"deployment-{env}")
    deployment.deployment_trace_commit_hash = f"commit-{env}"
    await cases.deployment_reports.create(deployment, by=piped)
    stages = [PipelineStage(id="s1", name="WAIT_APPROVAL", created_at=1, updated_at=1)]
    plan = ReportDeploymentPlannedRequest(deployment_id=deployment.id, summary="s", stages=stages)
    await cases.deployment_reports.report_planned(plan, by=piped)
    await cases.events.register(
        RegisterEventRequest(
            name=f"event-{env}",
            data="1",
            labels={"env": env},
            commit_hash=f"commit-{env}",
            commit_title=f"title-{env}",
            commit_url="https://example.com/c",
            commit_author="ann",
            commit_timestamp=1,
        ),
        by=plane.admin,
    )
    sync = await cases.applications.sync(id_, by=plane.admin)
    cancel = await cases.deployments.cancel(deployment.id, False, False, by=plane.admin)
    changes = DeploymentChanges(running_commit=f"commit-{env}")
    await cases.deployment_reports.report_changes(deployment.id, changes, by=piped)
    previewed = ApplicationPlanPreviewResult(application_id=id_, labels={"env": "dev"})
    preview = await add_preview(cases, piped, env, PlanPreviewCommandResult(results=[previewed]))
    return Objects(env, piped, id_, deployment.id, sync, cancel, preview)


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with start_control_plane(tmp_path_factory.mktemp("plane")) as plane:
        piped = await plane.register_piped()
        await piped.add_repository(REPOSITORY.id, REPOSITORY.remote)
        roles = plane.cases.roles
        await roles.add("Developer", parse_policies(POLICIES), by=plane.admin)
        releaser = parse_policies("resources=deployment{env:dev};actions=*")
        await roles.add("Releaser", releaser, by=plane.admin)
        reported = [
            ApplicationInfo(
                name=f"new-{env}", repo_id=REPOSITORY.id, path=f"new-{env}",
                config_filename="app.pipecd.yaml", labels={"env": env},
            )
            for env in ("dev", "prod")
        ]  # fmt: skip
        await plane.cases.application_reports.report_unregistered(reported, by=piped.caller)
        dev = await add_objects(plane, piped.caller, "dev")
        yield Scene(plane.cases, dev, await add_objects(plane, piped.caller, "prod"))


def registering(path: str, objects: Objects, env: str) -> Application:
    draft = application_draft(path, objects.piped.piped)
    draft.labels["env"] = env
    return draft


Attack = Callable[[UseCases, Objects], Awaitable[object]]
# What a developer does to an object; allowed for those of dev, denied for those of prod.
ATTACKS: dict[str, Attack] = {
    "reads the application": lambda c, o: c.applications.get(o.application, by=DEVELOPER),
    "syncs the application": lambda c, o: c.applications.sync(o.application, by=DEVELOPER),
    "moves the application": lambda c, o: c.applications.update(
        o.application, ApplicationUpdate(o.piped.piped, "k", "app.pipecd.yaml"), by=DEVELOPER
    ),
    "renames its file": lambda c, o: c.applications.rename_config_file(
        [o.application], "app.pipecd.yaml", by=DEVELOPER
    ),
    "changes its targets": lambda c, o: c.applications.set_deploy_targets(
        o.application, {}, by=DEVELOPER
    ),
    "disables the application": lambda c, o: c.applications.disable(o.application, by=DEVELOPER),
    "enables the application": lambda c, o: c.applications.enable(o.application, by=DEVELOPER),
    "reads the deployment": lambda c, o: c.deployments.get(o.deployment, by=DEVELOPER),
    "cancels the deployment": lambda c, o: c.deployments.cancel(
        o.deployment, False, False, by=DEVELOPER
    ),
    "reads the log of all stages": lambda c, o: c.logs.of_deployment(o.deployment, by=DEVELOPER),
    "reads the command of a sync": lambda c, o: c.commands.get(o.sync, by=DEVELOPER),
    "reads the command of a cancellation": lambda c, o: c.commands.get(o.cancel, by=DEVELOPER),
    "reads a command with a role for deployments": lambda c, o: c.commands.get(
        o.cancel, by=RELEASER
    ),
    "reads which resources the deployment changes": lambda c, o: c.deployments.changes(
        o.deployment, by=DEVELOPER
    ),
    "reads a plan preview that claims the labels": lambda c, o: c.plan_previews.get(
        o.preview, by=DEVELOPER
    ),
    "registers an application with the labels": lambda c, o: c.applications.add(
        registering(f"fresh-{o.env}", o, o.env), by=DEVELOPER
    ),
    "registers an application that Git gives the labels": lambda c, o: c.applications.add(
        registering(f"new-{o.env}", o, "dev"), by=DEVELOPER
    ),
    "registers an event": lambda c, o: c.events.register(
        RegisterEventRequest(name="e", data="1", labels={"env": o.env}), by=DEVELOPER
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_role_with_labels_is_denied_on_other_objects(scene: Scene, attack: Attack) -> None:
    with pytest.raises(Denied, match="Permission Denied"):
        await attack(scene.cases, scene.prod)
    await attack(scene.cases, scene.dev)


async def test_the_command_of_an_application_needs_a_role_for_it(scene: Scene) -> None:
    with pytest.raises(Denied):
        await scene.cases.commands.get(scene.dev.sync, by=RELEASER)


async def names_of_applications(cases: UseCases) -> list[str]:
    listed = await cases.applications.list(ApplicationFilter(project="demo"), by=DEVELOPER)
    return [one.name for one in listed.items]


async def ids_of_deployments(cases: UseCases) -> list[str]:
    listed = await cases.deployments.list(DeploymentFilter(project="demo"), by=DEVELOPER)
    return [one.id for one in listed.items]


async def names_of_events(cases: UseCases) -> list[str]:
    return [e.name for e in (await cases.events.list(EventFilter("demo"), by=DEVELOPER)).items]


async def traced(cases: UseCases) -> list[str]:
    page = await cases.deployments.traces("", by=DEVELOPER)
    return [
        text
        for traced in page.items
        for text in (traced.trace.title, *(d.id for d in traced.deployments))
    ]


async def unregistered(cases: UseCases) -> list[str]:
    return [info.name for info in await cases.application_reports.list_unregistered(by=DEVELOPER)]


async def branches_of_previews(cases: UseCases) -> list[str]:
    previews = await cases.plan_previews.list_recent(by=DEVELOPER)
    return [command.build_plan_preview.head_branch for command in previews]


ATTACKS_LISTS: dict[str, Callable[[UseCases], Awaitable[list[str]]]] = {
    "applications": names_of_applications,
    "deployments": ids_of_deployments,
    "events": names_of_events,
    "traces": traced,
    "unregistered applications": unregistered,
    "plan previews": branches_of_previews,
}


@pytest.mark.parametrize("names", ATTACKS_LISTS.values(), ids=ATTACKS_LISTS)
async def test_a_list_has_only_objects_with_the_labels(
    scene: Scene, names: Callable[[UseCases], Awaitable[list[str]]]
) -> None:
    listed = await names(scene.cases)
    assert any("dev" in name for name in listed)
    assert not any("prod" in name for name in listed)


ATTACKS_PAGES = {
    "one more than the maximum": MAX_PAGE_SIZE + 1,
    "the largest number": 2**31 - 1,
    "no size": 0,
    "a negative size": -1,
}


@pytest.mark.parametrize("size", ATTACKS_PAGES.values(), ids=ATTACKS_PAGES)
def test_a_page_has_a_maximum(size: int) -> None:
    assert page_size(size) == MAX_PAGE_SIZE


def test_a_smaller_page_is_as_requested() -> None:
    assert page_size(20) == 20


async def test_a_log_of_one_stage_is_denied_too(scene: Scene) -> None:
    with pytest.raises(Denied):
        await scene.cases.logs.stage_log(StageRun(scene.prod.deployment, "s1"), by=DEVELOPER)


async def test_a_command_without_an_application_is_for_every_role(scene: Scene) -> None:
    command = Command(
        type=Command.RESTART_PIPED, piped_id=scene.dev.piped.piped, project_id="demo",
        commander="root",
    )  # fmt: skip
    id_ = await scene.cases.commands.add(command)
    assert (await scene.cases.commands.get(id_, by=DEVELOPER)).id == id_


async def test_a_preview_shows_no_application_and_no_error_of_others(scene: Scene) -> None:
    """The error of a whole preview may name files of any application."""
    cases, piped = scene.cases, scene.dev.piped
    results = [
        ApplicationPlanPreviewResult(
            application_id=each.application, plan_details=each.env.encode()
        )
        for each in (scene.dev, scene.prod)
    ]
    mixed = await add_preview(cases, piped, "mixed", PlanPreviewCommandResult(results=results))
    shown = await cases.plan_previews.get(mixed, by=DEVELOPER)
    assert shown.result is not None
    assert [each.plan_details for each in shown.result.results] == [b"dev"]
    assert shown.hidden == 1
    # Nor does the list tell which previews have an application of others.
    listed = await cases.plan_previews.list_recent(scene.dev.application, by=DEVELOPER)
    assert mixed in [command.id for command in listed]
    assert await cases.plan_previews.list_recent(scene.prod.application, by=DEVELOPER) == ()
    failed = PlanPreviewCommandResult(error="conflicts in prod/secret-project/values.yaml")
    with pytest.raises(Denied):
        await cases.plan_previews.get(
            await add_preview(cases, piped, "failed", failed), by=DEVELOPER
        )


# What a list of plan previews says of one with an application of the role and one of another.
ATTACKS_COUNTS: dict[str, tuple[ApplicationPlanPreviewResult, str]] = {
    "an application that changes": (ApplicationPlanPreviewResult(), "1 0 0"),
    "an application without changes": (ApplicationPlanPreviewResult(no_change=True), "0 1 0"),
    "an application whose preview failed": (ApplicationPlanPreviewResult(error="e"), "0 0 1"),
}


@pytest.mark.parametrize(("own", "counts"), ATTACKS_COUNTS.values(), ids=ATTACKS_COUNTS)
async def test_counts_of_previews_are_of_visible_applications(
    scene: Scene, own: ApplicationPlanPreviewResult, counts: str
) -> None:
    cases, results = scene.cases, PlanPreviewCommandResult()
    results.results.add(application_id=scene.prod.application)
    results.results.add(application_id=scene.prod.deployment, error="of a deleted application")
    results.results.add(application_id=scene.prod.sync, no_change=True)
    results.results.add().MergeFrom(own)
    results.results[-1].application_id = scene.dev.application
    mixed = await add_preview(cases, scene.dev.piped, "mixed", results)
    for application in ("", scene.dev.application):
        listed = await cases.plan_previews.list_recent(application, by=DEVELOPER)
        command = next(each for each in listed if each.id == mixed)
        assert command.metadata[PREVIEW_COUNTS_KEY] == counts
    # Nor does the command itself tell, which every role may read.
    assert PREVIEW_COUNTS_KEY not in (await cases.commands.get(mixed, by=DEVELOPER)).metadata
