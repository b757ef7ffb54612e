# SPDX-License-Identifier: Apache-2.0
"""The pages of deployments, their logs, and cancel, approve and skip."""

import re
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.console.page_context import BrowserSession
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.chains import Matcher
from pipecd.model.command import CommandKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource
from servers.console import OpenBrowser, PipedReports, SubmitForm


async def test_without_deployments_the_list_says_how_to_get_one(
    admin_browser: httpx2.AsyncClient,
) -> None:
    page = (await admin_browser.get("/deployments")).text
    assert "No deployments yet" in page


async def test_the_list_shows_running_deployments(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    page = (await admin_browser.get("/deployments")).text
    assert f'id="dep-{deployment.id}"' in page
    assert ">1 running</a>." in page
    assert "more coffee" in page


async def test_the_list_says_which_deployment_waits_for_an_offline_piped(
    admin_browser: httpx2.AsyncClient,
    deployment: Deployment,
    reports: PipedReports,
    advance: Callable[[float], None],
) -> None:
    await reports.online()
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    assert "dep-stuck" not in (await admin_browser.get("/deployments")).text
    advance(600)
    assert "dep-stuck" in (await admin_browser.get("/deployments")).text


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        pytest.param("status=1", True, id="its status"),
        pytest.param("status=4,5", False, id="other statuses"),
        pytest.param("applicationName=cart", True, id="its application"),
        pytest.param("q=c0ff", True, id="the beginning of its commit"),
        pytest.param("q=tea", False, id="another message"),
        pytest.param("waiting=approval", False, id="only those that wait"),
        pytest.param("labels[0]=env:dev", True, id="its label"),
    ],
)
async def test_filters_are_in_the_url(
    query: str, is_there: bool, admin_browser: httpx2.AsyncClient, deployment: Deployment
) -> None:
    page = (await admin_browser.get(f"/deployments?{query}")).text
    assert (f'id="dep-{deployment.id}"' in page) is is_there


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("kind=0", {"cart"}, id="the kind of v0"),
        pytest.param("kind=1", {"network"}, id="the plugin of a kind"),
        pytest.param("kind=process", {"router"}, id="another plugin"),
        pytest.param("kind=process,1", {"network", "router"}, id="two of them"),
        pytest.param("kind=5", set[str](), id="one that no application has"),
    ],
)
async def test_deployments_are_filtered_by_platform_in_both_generations(
    *,
    query: str,
    found: set[str],
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    draft: Application,
    deployment: Deployment,
) -> None:
    assert deployment.application_name == "cart"
    for plugin, name in (("terraform", "network"), ("process", "router")):
        draft.name, draft.git_path.path = name, f"apps/{name}"
        draft.platform_provider = ""
        draft.deploy_targets_by_plugin.clear()
        draft.deploy_targets_by_plugin[plugin].deploy_targets.append("dev")
        id = await cases.applications.add(draft, by=admin)
        made = Deployment()
        made.CopyFrom(deployment)
        made.id, made.application_id, made.application_name = new_id(), id, name
        made.platform_provider = ""
        made.deploy_targets_by_plugin[plugin].deploy_targets.append("dev")
        await cases.deployment_reports.create(made, by=piped)
    page = (await admin_browser.get(f"/deployments?{query}")).text
    rows = re.findall(r'<tr id="dep-.*?</tr>', page, re.DOTALL)
    assert {name for name in ("cart", "network", "router") if any(name in row for row in rows)} == (
        found
    )


async def test_all_pages_of_a_long_list_have_each_deployment_once(
    *,
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    advance: Callable[[float], None],
) -> None:
    made: set[str] = set()
    for _ in range(120):
        one = new_deployment()
        made.add(one.id)
        advance(1)
        await cases.deployment_reports.create(one, by=piped)
    seen: list[str] = []
    path = "/deployments"
    for _ in range(4):
        page = (await admin_browser.get(path)).text
        seen += re.findall(r'id="dep-([0-9a-f-]+)"', page)
        older = re.search(r'rel="next" href="([^"]+)"', page)
        if older is None:
            break
        path = older[1].replace("&amp;", "&")
    assert len(seen) == len(made) == 120
    assert set(seen) == made


async def test_a_day_before_today_has_the_times_of_its_deployments_and_their_zone_once(
    *,
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    advance: Callable[[float], None],
) -> None:
    admin_browser.cookies["tz"] = "Asia/Tokyo"
    for seconds in (0, 86_400, 86_400):
        advance(seconds)
        await cases.deployment_reports.create(new_deployment(), by=piped)
    page = (await admin_browser.get("/deployments")).text
    headings = re.findall(r"rowgroup\">(.*?)</th>", page)
    zone = '<small data-testid="list-zone">Times in JST</small>'
    assert headings == ["Today", f"Yesterday {zone}", "Friday, 2 January 2026"]
    times = re.findall(r"<time[^>]*>([^<]*)</time></td>", page)
    assert times == ["just now", "12:04", "12:04"]


async def test_the_page_shows_status_pipeline_and_log(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.online()
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s1", StageStatus.RUNNING)
    await reports.lines(deployment, "s1", "hello\x1b[32m green\x1b[0m <b>")
    page = (await admin_browser.get(f"/deployments/{deployment.id}")).text
    assert "Stage 1 of 3 is running: K8S_CANARY_ROLLOUT." in page
    assert "<title>Running · cart · PipeCD</title>" in page
    assert re.search(r'data-stage-id="s1" data-status="RUNNING".*aria-current="step"', page)
    assert 'hello<span class="fg2"> green</span> &lt;b&gt;' in page
    assert f"dep:{deployment.id},pipeds,log:{deployment.id}:s1:0" in page


async def test_the_page_shows_the_chain_that_the_deployment_is_part_of(
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    piped: PipedCaller,
    admin: User,
    draft: Application,
    new_deployment: Callable[[], Deployment],
) -> None:
    draft.name = "web"
    await cases.applications.add(draft, by=admin)
    first = new_deployment()
    await cases.chains.create(first, [Matcher(name="web")], by=piped)
    page = (await admin_browser.get(f"/deployments/{first.id}")).text
    shown = re.search(r'data-testid="chain">(.*?)</dd>', page, re.DOTALL)
    assert shown is not None
    words = " ".join(re.sub(r"<[^>]+>", " ", shown[1]).split())
    assert words == "Block 1 of 2 Pending 1. cart Pending 2. web Pending"
    assert shown[1].count(f'href="/deployments/{first.id}"') == 1


async def test_the_page_shows_who_triggered_it_and_why(
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
) -> None:
    made = new_deployment()
    made.trigger.strategy_summary = "Sync because cart/<x> changed"
    await cases.deployment_reports.create(made, by=piped)
    page = (await admin_browser.get(f"/deployments/{made.id}")).text
    who = made.trigger.commit.author
    reason = "Sync because cart/&lt;x&gt; changed."
    assert f'data-testid="trigger">{who}<small>{reason}</small>' in page


async def test_a_deployment_without_a_chain_shows_none(
    admin_browser: httpx2.AsyncClient, deployment: Deployment
) -> None:
    page = await admin_browser.get(f"/deployments/{deployment.id}")
    assert 'data-testid="chain"' not in page.text


async def test_a_selected_stage_stays_selected(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s1", StageStatus.SUCCESS)
    await reports.stage(deployment, "s2", StageStatus.RUNNING)
    page = (await admin_browser.get(f"/deployments/{deployment.id}?stage=s1")).text
    assert 'aria-label="Log of K8S_CANARY_ROLLOUT"' in page
    assert "Go to WAIT_APPROVAL" in page


async def test_the_reason_of_a_failure_is_shown(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.stage(deployment, "s1", StageStatus.FAILURE, "the image cannot be pulled")
    await reports.deployment(deployment, DeploymentStatus.FAILURE)
    page = (await admin_browser.get(f"/deployments/{deployment.id}")).text
    assert "K8S_CANARY_ROLLOUT failed: the image cannot be pulled." in page
    assert 'data-testid="cancel-button"' not in page
    assert 'data-testid="approve-button"' not in page


async def test_a_completed_deployment_with_a_completed_log_follows_its_application_only(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.stage(deployment, "s1", StageStatus.SUCCESS)
    await reports.lines(deployment, "s1", "done")
    await reports.deployment(deployment, DeploymentStatus.SUCCESS)
    here, follows = f"/deployments/{deployment.id}", f"app:{deployment.application_id}"
    page = (await admin_browser.get(here)).text
    assert f'data-topics="{follows},log:{deployment.id}:s1:0"' in page
    await reports.end_of_log(deployment, "s1")
    assert f'data-topics="{follows}"' in (await admin_browser.get(here)).text


async def test_a_long_log_shows_its_end(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.stage(deployment, "s1", StageStatus.RUNNING)
    await reports.lines(deployment, "s1", *(f"line {n}" for n in range(1, 1101)))
    here = f"/deployments/{deployment.id}"
    page = (await admin_browser.get(here)).text
    assert page.count('data-testid="log-line"') == 1000
    assert 'id="L101"' in page
    assert 'id="L100"' not in page
    assert "100 before this" in page
    page = (await admin_browser.get(f"{here}?from=1")).text
    assert 'id="L1"' in page
    assert "100 after this" in page
    page = (await admin_browser.get(f"{here}?find=line+1&match=999")).text
    assert "212 of 212" in page
    assert "<mark>line 1</mark>100" in page


async def test_a_script_gets_only_new_log_lines(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.stage(deployment, "s1", StageStatus.RUNNING)
    await reports.lines(deployment, "s1", "one", "two", "three")
    here = f"/deployments/{deployment.id}"
    headers = {"HX-Request": "true", "HX-Log": "s1%3A0%3AUTC 2:2"}
    page = (await admin_browser.get(here, headers=headers)).text
    assert re.findall(r'id="L(\d+)"', page) == ["3"]
    assert 'data-cursor="3:3"' in page
    # Of another stage or in another time zone it has none of the lines.
    for other in ("s2%3A0%3AUTC 2:2", "s1%3A0%3AAsia%2FTokyo 2:2"):
        headers["HX-Log"] = other
        page = (await admin_browser.get(here, headers=headers)).text
        assert re.findall(r'id="L(\d+)"', page) == ["1", "2", "3"]


async def test_a_refresh_shows_the_first_error_without_reading_the_log_again(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports, tmp_path: Path
) -> None:
    await reports.stage(deployment, "s1", StageStatus.FAILURE, "exited with code 1")
    lines = ["error: no tax rates", *(f"clean up {n}" for n in range(2, 31))]
    await reports.lines(deployment, "s1", *lines)
    await reports.end_of_log(deployment, "s1")
    here = f"/deployments/{deployment.id}?stage=s1"
    assert "<b>error: no tax rates</b>" in (await admin_browser.get(here)).text
    for file in (tmp_path / "files").rglob("*.txt"):
        file.unlink()
    headers = {"HX-Request": "true", "HX-Log": "s1%3A0%3AUTC 30:30"}
    assert "<b>error: no tax rates</b>" in (await admin_browser.get(here, headers=headers)).text


async def test_the_raw_log_is_a_text(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.lines(deployment, "s1", "\x1b[31mred\x1b[0m <b>")
    raw = f"/deployments/{deployment.id}/stages/s1/log.txt"
    response = await admin_browser.get(raw)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == "2026-01-02T03:04:05Z red <b>\n"
    assert "\x1b[31m" in (await admin_browser.get(f"{raw}?ansi=1")).text
    saved = await admin_browser.get(f"{raw}?download=1")
    filename = f"cart-K8S_CANARY_ROLLOUT-{deployment.id[:8]}.log"
    assert saved.headers["content-disposition"] == f'attachment; filename="{filename}"'
    assert (await admin_browser.get(f"{raw}?times=0")).text == "red <b>\n"
    missing = await admin_browser.get(f"/deployments/{deployment.id}/stages/none/log.txt")
    assert missing.status_code == 404


@pytest.mark.parametrize(
    ("mode", "rollback", "keep"),
    [
        pytest.param("", False, False, id="as the application is configured"),
        pytest.param("rollback", True, False, id="with a rollback"),
        pytest.param("keep", False, True, id="without a rollback"),
    ],
)
async def test_a_deployment_can_be_cancelled(
    *,
    mode: str,
    rollback: bool,
    keep: bool,
    admin_browser: httpx2.AsyncClient,
    deployment: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    submit_form: SubmitForm,
) -> None:
    here = f"/deployments/{deployment.id}"
    response = await submit_form(admin_browser, here, f"{here}/cancel", mode=mode)
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert response.headers["location"] == f"{here}?cmd={command.id}"
    cancel = command.cancel_deployment
    assert (cancel.force_rollback, cancel.force_no_rollback) == (rollback, keep)


async def test_a_waiting_stage_can_be_approved(
    *,
    admin_browser: httpx2.AsyncClient,
    deployment: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    submit_form: SubmitForm,
) -> None:
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s2", StageStatus.RUNNING)
    here = f"/deployments/{deployment.id}"
    page = (await admin_browser.get(here)).text
    assert "Waiting for approval" in page
    assert 'data-testid="approval-card"' in page
    response = await submit_form(admin_browser, here, f"{here}/stages/s2/approve")
    assert response.status_code == 303
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert (command.type, command.stage_id) == (CommandKind.APPROVE_STAGE, "s2")


async def test_the_approvers_are_shown_to_others(
    *,
    admin_browser: httpx2.AsyncClient,
    deployment: Deployment,
    stores: Stores,
    reports: PipedReports,
    submit_form: SubmitForm,
) -> None:
    await reports.stage(deployment, "s2", StageStatus.RUNNING)
    await reports.deployment(deployment, DeploymentStatus.RUNNING)

    def name_approvers(found: Deployment) -> None:
        found.stages[1].authorized_operators.extend(["ann", "bob"])

    await stores.deployments.update(deployment.id, name_approvers)
    here = f"/deployments/{deployment.id}"
    page = (await admin_browser.get(here)).text
    assert "<b>ann</b> or <b>bob</b> can approve." in page
    assert "who is not one of the approvers" in page
    response = await submit_form(admin_browser, here, f"{here}/stages/s2/approve")
    assert response.status_code == 403
    assert "not in the approver list: ann, bob" in response.text


async def test_an_analysis_can_be_skipped(
    *,
    admin_browser: httpx2.AsyncClient,
    deployment: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    submit_form: SubmitForm,
) -> None:
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s3", StageStatus.RUNNING)
    here = f"/deployments/{deployment.id}"
    assert 'data-testid="skip-button"' in (await admin_browser.get(here)).text
    await submit_form(admin_browser, here, f"{here}/stages/s3/skip")
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.type == CommandKind.SKIP_STAGE


async def test_a_completed_deployment_cannot_be_cancelled(
    *,
    admin_browser: httpx2.AsyncClient,
    admin: User,
    deployment: Deployment,
    reports: PipedReports,
) -> None:
    await reports.deployment(deployment, DeploymentStatus.SUCCESS)
    secret = BrowserSession(admin, admin_browser.cookies["token"]).csrf
    response = await admin_browser.post(
        f"/deployments/{deployment.id}/cancel", data={"csrf": secret}
    )
    here = f"/deployments/{deployment.id}"
    assert (response.status_code, response.headers["location"]) == (303, here)
    text = "The cancellation came too late: the deployment has already succeeded."
    assert text in (await admin_browser.get(here)).text
    # Only the page that the form was on says so.
    assert text not in (await admin_browser.get("/deployments")).text


async def test_a_command_returns_to_what_was_shown(
    *,
    admin_browser: httpx2.AsyncClient,
    deployment: Deployment,
    reports: PipedReports,
    submit_form: SubmitForm,
) -> None:
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s1", StageStatus.SUCCESS)
    await reports.stage(deployment, "s2", StageStatus.RUNNING)
    here = f"/deployments/{deployment.id}"
    page = (await admin_browser.get(f"{here}?stage=s1&find=line&only=errors&at=7&cmd=x")).text
    form = re.search(r'<form method="post" action="[^"]+/approve">(.*?)</form>', page)
    assert form
    fields = dict(re.findall(r'name="([a-z]+)" value="([^"]*)"', form[1]))
    fields.pop("csrf")
    assert fields == {"stage": "s1", "find": "line", "only": "errors"}
    response = await submit_form(admin_browser, here, f"{here}/stages/s2/approve", **fields)
    assert response.headers["location"].startswith(f"{here}?stage=s1&find=line&only=errors&cmd=")


async def test_a_page_shows_only_commands_about_itself(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    deployment: Deployment,
    cases: UseCases,
    admin: User,
) -> None:
    sync = await cases.applications.sync(application.id, by=admin)
    cancel = await cases.deployments.cancel(deployment.id, False, False, by=admin)
    page = (await admin_browser.get(f"/deployments/{deployment.id}?cmd={sync}")).text
    assert "The sync is requested" not in page
    page = (await admin_browser.get(f"/deployments/{deployment.id}?cmd={cancel}")).text
    assert "The cancellation is requested" in page


async def test_a_deployment_is_shown_without_permission_for_pipeds(
    open_browser: OpenBrowser,
    admin: User,
    cases: UseCases,
    deployment: Deployment,
) -> None:
    policy = ProjectRBACPolicy(
        resources=[ProjectRBACResource(type=ProjectRBACResource.DEPLOYMENT)],
        actions=[ProjectRBACPolicy.GET],
    )
    await cases.roles.add("Watcher", [policy], by=admin)
    watcher = User("shop", "wendy", ("Watcher",))
    response = await open_browser(watcher).get(f"/deployments/{deployment.id}")
    assert response.status_code == 200
    assert "Not shown" in response.text
