# SPDX-License-Identifier: Apache-2.0
"""A real browser whose pages must not cause errors."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import application_pb2 as model
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.logblock_pb2 import ERROR, LogBlock
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure
from servers import browser
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.console_pages import ShownObjects, page_addresses
from servers.filled_project import FilledProject, ProjectFiller
from servers.live_states import DRIFT, resources, snapshot

# As long as for actions: the browser shares the cores with everything else that is tested.
expect.set_options(timeout=10_000)


@pytest.fixture(scope="module")
async def chromium(anyio_backend: str) -> AsyncIterator[Browser]:
    del anyio_backend
    async with browser.chromium() as opened:
        yield opened


@pytest.fixture
async def open_page(
    chromium: Browser, console_url: str, cases: UseCases, admin: User
) -> AsyncIterator[OpenPage]:
    """Opens a page as the administrator; script and policy errors fail the test."""
    errors: list[str] = []
    async with AsyncExitStack() as opened:

        async def opens(path: str, *, user: User | None = admin, **options: Any) -> Page:
            context = await chromium.new_context(**options)
            opened.push_async_callback(context.close)
            context.set_default_timeout(10_000)
            # A page that is slow to load is no finding of these tests; bench/ measures that.
            context.set_default_navigation_timeout(30_000)
            if user is not None:
                token = cases.sessions.issue(user)
                await context.add_cookies(
                    [{"name": "token", "value": token, "url": console_url, "sameSite": "Strict"}]
                )
            page = await context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on(
                "console",
                lambda said: errors.append(said.text) if "Content Security" in said.text else None,
            )
            page.on(
                "request",
                lambda request: (
                    errors.append(request.url)
                    if not request.url.startswith((console_url, "data:"))
                    else None
                ),
            )
            await page.goto(path if path.startswith("data:") else console_url + path)
            return page

        yield opens
    assert errors == []


@pytest.fixture
async def running(deployment: Deployment, reports: PipedReports) -> Deployment:
    """A deployment whose first stage runs and has written a line."""
    await reports.online()
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s1", StageStatus.RUNNING)
    await reports.lines(deployment, "s1", "line 1")
    return deployment


@pytest.fixture
async def filled(
    *,
    cases: UseCases,
    stores: Stores,
    bus: MemoryBus,
    admin: User,
    piped: PipedCaller,
    program: ApiKeyCaller,
    application: Application,
    now: Now,
) -> FilledProject:
    """A project with some weeks of history."""
    filler = ProjectFiller(cases, stores, bus, admin, piped, program, application, now)
    return await filler.fill()


@pytest.fixture
async def live_state(cases: UseCases, piped: PipedCaller, application: Application) -> Application:
    """An application with live resources that differ from Git, and others that were found."""
    found = [
        ApplicationInfo(name=name, repo_id="site", path=name, config_filename="app.pipecd.yaml")
        for name in ("api", "web")
    ]
    await cases.application_reports.report_unregistered(found, by=piped)
    state = ApplicationSyncState(
        status=model.ApplicationSyncStatus.ValueType(SyncStatus.OUT_OF_SYNC),
        reason=DRIFT,
        timestamp=1,
    )
    await cases.application_reports.report_sync_state(application.id, state, by=piped)
    for broken in (False, True):
        reported = snapshot(application, *resources(4, 3, broken=broken))
        await cases.livestate.report(reported, by=piped)
    return application


@pytest.fixture
async def settings(cases: UseCases, admin: User, piped: PipedCaller, single_sign_on: None) -> None:
    """Roles, groups, keys, a webhook, and pipeds that do not run everything."""
    del single_sign_on
    policies = parse_policies("resources=application{env:dev},deployment;actions=get,list")
    await cases.roles.add("watchers", policies, by=admin)
    await cases.roles.add_group("org/night", "watchers", by=admin)
    await cases.webhooks.rotate(by=admin)
    await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    await cases.pipeds.add_key(piped.piped, by=admin)
    failure = PluginFailure(plugin="greeter", reason="the licence is missing", since=1)
    await cases.pipeds.report_plugin_failures([failure], by=piped)
    unused = await cases.pipeds.register("unused", "", by=admin)
    await cases.pipeds.disable(unused.id, by=admin)
    request = AcquirePipedLeaseRequest(host="worker")
    request.ticket = (await cases.piped_leases.acquire(request, by=piped))[0].ticket
    await cases.piped_leases.acquire(request, by=piped)


@pytest.fixture
async def rolled_back(
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    reports: PipedReports,
) -> Deployment:
    """A deployment that has failed in one of two parallel stages and was rolled back."""
    deployment = new_deployment()
    stages = [
        PipelineStage(id=id, name=name, requires=requires, rollback=id == "r", visible=True)
        for id, name, requires in (
            ("f1", "K8S_CANARY_ROLLOUT", []),
            ("f2", "ANALYSIS", ["f1"]),
            ("f3", "SCRIPT_RUN", ["f1"]),
            ("f4", "K8S_PRIMARY_ROLLOUT", ["f2", "f3"]),
            ("r", "ROLLBACK", []),
        )
    ]
    for stage in stages:
        stage.created_at = stage.updated_at = 1
    stages[1].desc = "Compare the error rates"
    await cases.deployment_reports.create(deployment, by=piped)
    planned = ReportDeploymentPlannedRequest(
        deployment_id=deployment.id, summary="canary", stages=stages
    )
    await cases.deployment_reports.report_planned(planned, by=piped)
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    for id in ("f1", "f2", "f3", "r"):
        await reports.stage(deployment, id, StageStatus.RUNNING)
        await reports.lines(deployment, id, f"this is {id}")
    await reports.stage(deployment, "f1", StageStatus.SUCCESS)
    await reports.stage(deployment, "f3", StageStatus.CANCELLED)
    await reports.stage(deployment, "f2", StageStatus.FAILURE, "the error rate was 12%")
    await reports.stage(deployment, "r", StageStatus.SUCCESS)
    await reports.deployment(deployment, DeploymentStatus.FAILURE)
    return deployment


@pytest.fixture
async def shown(
    *,
    settings: None,
    cases: UseCases,
    stores: Stores,
    live_state: Application,
    rolled_back: Deployment,
    running: Deployment,
    reports: PipedReports,
    filled: FilledProject,
    piped: PipedCaller,
) -> ShownObjects:
    """A project in which every page has something to show, and every menu is there."""
    del settings
    errors = [LogBlock(index=n, log=f"error {n}", severity=ERROR, created_at=1) for n in (98, 99)]
    await cases.logs.append(StageRun(running.id, "s1"), errors, by=piped)

    def need_two(stored: Deployment) -> None:
        stored.stages[1].metadata["pipecd/stage-required-approvals"] = "2"

    await stores.deployments.update(running.id, need_two)
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    for stage in ("s2", "s3"):
        await reports.stage(running, stage, StageStatus.RUNNING)
    await reports.lines(rolled_back, "f2", "error: too slow", *(f"at {n}" for n in range(20)))
    succeeded = await stores.deployments.get(filled.deployment)
    await reports.deployment(succeeded, DeploymentStatus.SUCCESS)
    await cases.sessions.begin(User(piped.project, "vera", ("Viewer",)))
    return ShownObjects(
        application=live_state.id,
        piped=piped.piped,
        waiting=running.id,
        succeeded=filled.deployment,
        failed=rolled_back.id,
        chain=filled.chain,
        event=filled.event,
        preview=filled.preview,
    )


@pytest.fixture
def all_pages(cases: UseCases, bus: MemoryBus, shown: ShownObjects) -> tuple[str, ...]:
    """The addresses of every page of the console."""
    return page_addresses(create_console(cases, bus, insecure_cookie=True).routes, shown)
