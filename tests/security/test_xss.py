# SPDX-License-Identifier: Apache-2.0
"""Names, labels, commits, reasons, URLs and logs are text on every page and in every comment."""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
import yaml

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.console import stage_log
from pipecd.controlplane.console.ansi import ansi_html, strip_ansi
from pipecd.controlplane.console.live_updates import parse_topics
from pipecd.controlplane.console.stage_log import MAX_BLOCK_CHARACTERS, LogQuery, log_view
from pipecd.controlplane.datastore.log_file import StoredLog
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.events import EventReport
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.document import to_json
from pipecd.model.errors import UserMistake
from pipecd.pipectl.plan_preview_comment import MARKER, as_markdown
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, ApplicationSyncState
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationInfo, ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.event_pb2 import EVENT_FAILURE
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveState,
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
    ResourceState,
)
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
    PluginPlanPreviewResult,
)
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest, ReportPipedMetaRequest
from servers.control_plane import ServedControlPlane, start_control_plane
from servers.tenants import REPOSITORY, application_draft, new_deployment


@dataclass
class Site:
    """A control plane and a browser that is signed in to it."""

    plane: ServedControlPlane
    browser: httpx2.AsyncClient


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with (
        start_control_plane(tmp_path_factory.mktemp("plane")) as plane,
        httpx2.AsyncClient(base_url=f"http://{plane.address}") as browser,
    ):
        form = {"project": "demo", "username": "admin", "password": plane.password}
        await browser.post("/auth/login/static", data=form)
        yield Site(plane, browser)


class PageAudit(HTMLParser):
    """What a page would do in a browser besides showing text."""

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[str] = []
        self.text: list[str] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name: value or "" for name, value in attrs}
        self._is_script = tag == "script"
        if tag in ("iframe", "object", "embed", "base", "style", "attack"):
            self.findings.append(f"<{tag}>")
        if tag == "script" and not names.get("src", "").startswith("/assets/"):
            self.findings.append(f"<script {names}>")
        for name, value in names.items():
            if name.startswith("on") or name in ("style", "srcdoc", "data-attack"):
                self.findings.append(f"<{tag} {name}>")
            if name in ("href", "src", "action", "formaction", "content") and not self._is_safe(
                name, value
            ):
                self.findings.append(f"<{tag} {name}={value!r}>")

    @staticmethod
    def _is_safe(name: str, value: str) -> bool:
        if name == "content":
            return "url=" not in value or value.partition("url=")[2].startswith(("/", "http"))
        return value.startswith(("/", "?", "#", "https://", "http://"))

    def handle_data(self, data: str) -> None:
        if self._is_script and data.strip():
            self.findings.append(f"<script>{data}")
        self.text.append(data)


def audit(page: str) -> PageAudit:
    parser = PageAudit()
    parser.feed(page)
    parser.close()
    return parser


@dataclass(frozen=True)
class Published:
    """The ids of what contains a payload."""

    application: str
    deployment: str
    event: str
    chain: str
    piped: str
    resource: str
    preview: str
    user: str


async def publish(site: Site, payload: str, number: int) -> Published:
    """Stores the payload wherever users and pipeds can write text; returns what pages to open."""
    cases, admin = site.plane.cases, site.plane.admin
    short = payload[:36]
    registered = await cases.pipeds.register(f"{number}{short}", payload, by=admin)
    reporter = PipedCaller("demo", registered.id)
    meta = ReportPipedMetaRequest(version=short, repositories=[REPOSITORY], config=payload)
    await cases.pipeds.report_meta(meta, by=reporter)
    draft = application_draft(f"app{number}", registered.id)
    draft.name, draft.description = f"{number}{short}"[:36], payload
    draft.labels["team"] = payload
    draft.git_path.url = payload
    application_id = await cases.applications.add(draft, by=admin)
    info = ApplicationInfo(
        id=application_id, name=draft.name, description=payload, labels={"team": payload}
    )
    await cases.application_reports.update_configurations([info], by=reporter)
    unregistered = ApplicationInfo(
        name=short, repo_id=REPOSITORY.id, path=f"x{number}", config_filename="app.pipecd.yaml",
        labels={"team": payload},
    )  # fmt: skip
    await cases.application_reports.report_unregistered([unregistered], by=reporter)
    drift = ApplicationSyncState(
        status=OUT_OF_SYNC, reason=f"+ {payload}\n~ k = {payload} -> {payload}",
        short_reason=payload, timestamp=1,
    )  # fmt: skip
    await cases.application_reports.report_sync_state(application_id, drift, by=reporter)
    application = await cases.applications.get(application_id, by=admin)
    deployment = new_deployment(application, f"deployment-{number}")
    fill_deployment(deployment, payload)
    await cases.deployment_reports.create(deployment, by=reporter)
    stage = PipelineStage(
        id="s1", name=short, desc=payload, status_reason=payload, metadata={"k": payload},
        created_at=1, updated_at=1,
    )  # fmt: skip
    plan = ReportDeploymentPlannedRequest(
        deployment_id=deployment.id, summary=payload, status_reason=payload, stages=[stage],
        version=short, versions=[ArtifactVersion(kind=ArtifactVersion.CONTAINER_IMAGE, name=short, version=short, url=payload)],
    )  # fmt: skip
    await cases.deployment_reports.report_planned(plan, by=reporter)
    block = LogBlock(index=1, log=payload, created_at=1_700_000_000)
    await cases.logs.append(StageRun(deployment.id, "s1"), [block], by=reporter)
    event = RegisterEventRequest(
        name=short, data=payload, contexts={"k": payload}, labels={"team": payload},
        commit_hash=f"{number:040x}", commit_url=payload, commit_title=payload,
        commit_message=f"{payload}\n\n{payload}", commit_author=payload,
    )  # fmt: skip
    event_id = await cases.events.register(event, by=admin)
    report = EventReport(event_id, EVENT_FAILURE, payload)
    await cases.events.report_statuses([report], by=reporter)
    resource = ResourceState(
        id=payload, name=payload, resource_type=short, resource_metadata={payload: payload},
        health_status=ResourceState.UNHEALTHY, health_description=payload, deploy_target=short,
        plugin_name=short, created_at=1, updated_at=1,
    )  # fmt: skip
    state = ApplicationLiveStateSnapshot(
        application_id=application_id, application_live_state=ApplicationLiveState(resources=[resource]),
        version=ApplicationLiveStateVersion(timestamp=1),
    )  # fmt: skip
    await cases.livestate.report(state, by=reporter)
    first = new_deployment(application, f"first-of-chain-{number}")
    fill_deployment(first, payload)
    await cases.chains.create(first, [], by=reporter)
    results = [
        PluginPlanPreviewResult(
            plugin_name=payload, deploy_target=payload, plan_summary=payload.encode(),
            plan_details=f'# 1. name="{payload}", kind="{payload}", namespace="", apiVersion=""\n\n+ {payload}\n'.encode(),
        )
    ]  # fmt: skip
    changes = DeploymentChanges(results=results, error=payload, created_at=1)
    await cases.deployment_reports.report_changes(deployment.id, changes, by=reporter)
    preview = await publish_preview(site, payload, application_id, reporter, results)
    await cases.sessions.begin(User("demo", f"{number}{payload}", (payload,)))
    return Published(
        application_id,
        deployment.id,
        event_id,
        first.deployment_chain_id,
        registered.id,
        f"{short}/{payload}",
        preview,
        f"{number}{payload}",
    )


async def publish_preview(
    site: Site,
    payload: str,
    application_id: str,
    reporter: PipedCaller,
    results: Sequence[PluginPlanPreviewResult],
) -> str:
    request = Command.BuildPlanPreview(
        repository_id=payload, head_branch=payload, head_commit=payload, base_branch=payload
    )
    command = Command(
        project_id="demo",
        piped_id=reporter.piped,
        type=Command.BUILD_PLAN_PREVIEW,
        build_plan_preview=request,
    )
    id = await site.plane.cases.commands.add(command)
    applications = [
        ApplicationPlanPreviewResult(
            application_id=application_id, application_name=payload, error=error,
            labels={"team": payload}, plugin_plan_results=results,
        )
        for error in ("", payload)
    ]  # fmt: skip
    output = to_json(PlanPreviewCommandResult(results=applications)).encode()
    result = CommandResult(id, CommandStatus.SUCCEEDED, to_unix(utc_now()), output=output)
    await site.plane.cases.commands.report_handled(result, by=reporter)
    return id


def fill_deployment(deployment: Deployment, payload: str) -> None:
    commit = deployment.trigger.commit
    commit.message = commit.author = commit.url = payload
    commit.branch = payload[:36]
    deployment.trigger.commander = payload
    deployment.trigger.strategy_summary = payload
    deployment.summary = deployment.status_reason = payload


# Texts that become markup, script or a link where a page forgets to escape them.
ATTACKS = {
    "a script": "<script data-attack>alert(1)</script>",
    "an end of the attribute": '"><attack data-attack>',
    "an end of the attribute in single quotes": "'><attack data-attack>",
    "an event handler": '" onmouseover="alert(1)" data-attack="',
    "an event handler without quotes": "x onerror=alert(1) data-attack",
    "an end of the title": "</title><attack data-attack>",
    "an end of the text area": "</textarea></pre><attack data-attack>",
    "an image": "<img src=x onerror=alert(1) data-attack>",
    "an SVG": "<svg/onload=alert(1)/data-attack>",
    "entities": "&lt;attack data-attack&gt;&#60;attack&#62;",
    "a comment": "<!--><attack data-attack>-->",
    "a template": "{{ 7 * 7 }}{% raw %}<attack data-attack>",
    "a script URL": "javascript:alert(1)//data-attack",
    "a script URL in capitals": "JaVaScRiPt:alert(1)",
    "a script URL with a tab": "java\tscript:alert(1)",
    "a script URL after a space": " javascript:alert(1)",
    "a URL of HTML": "data:text/html,<attack data-attack>",
    "a URL of another script": "vbscript:msgbox(1)",
    "Markdown": "[x](javascript:alert(1)) ![x](x onerror=alert(1))",
    "a link of a terminal": "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07",
    "colours of a terminal": "\x1b[31m<attack data-attack>\x1b[0m",
    "a sequence in a tag": "<att\x1b[0mack data-attack>",
    "a carriage return in a tag": "xxxxxxxxx>\r<attack ",
}


@pytest.mark.parametrize("payload", ATTACKS.values(), ids=ATTACKS)
async def test_a_text_is_shown_as_text_on_every_page(site: Site, payload: str) -> None:
    number = list(ATTACKS.values()).index(payload)
    published = await publish(site, payload, number)
    application, deployment = published.application, published.deployment
    live = f"/applications/{application}/live"
    paths = (
        "/overview",
        "/applications",
        f"/applications/{application}",
        f"/applications/{application}?diff=split",
        f"/applications/{application}/settings",
        f"/applications/{application}/encrypt",
        live,
        f"{live}?view=graph",
        f"{live}?res={quote(published.resource, safe='')}",
        f"{live}?q={quote(payload)}&kind={quote(payload)}",
        "/applications/add",
        "/deployments",
        f"/deployments/{deployment}",
        f"/deployments/{deployment}?stage=s1",
        f"/deployments/{deployment}?stage=s1&find={quote(payload)}",
        f"/deployments/{deployment}?tab=changes",
        f"/deployments/{deployment}?tab=timeline",
        "/chains",
        f"/chains/{published.chain}",
        "/deployment-traces",
        "/events",
        f"/events/{published.event}",
        f"/events?q={quote(payload)}",
        f"/search?q={quote(payload)}",
        f"/insights?app={quote(payload)}",
        "/settings/piped",
        f"/settings/piped/{published.piped}",
        "/settings/api-key",
        "/settings/users",
        f"/settings/users?user={quote(published.user)}&q={quote(payload)}",
        "/settings/project",
        "/plan-previews",
        f"/plan-previews/{published.preview}",
        f"/plan-previews/{published.preview}?diff=split&app={application}",
        f"/deployments/{deployment}?tab=changes&diff=split",
        f"/nowhere/{payload}".replace("\t", "%09").replace("\x1b", "%1b").replace("\x07", "%07")
        .replace("\r", "%0d"),
    )  # fmt: skip
    for path in paths:
        answer = await site.browser.get(path)
        assert answer.status_code in (200, 404), path
        page = audit(answer.text)
        assert page.findings == [], path
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "script-src 'self'" in policy
    raw = await site.browser.get(f"/deployments/{deployment}/stages/s1/log.txt")
    assert raw.headers["content-type"].startswith("text/plain")
    assert raw.headers["x-content-type-options"] == "nosniff"


async def test_a_plain_text_is_shown(site: Site) -> None:
    published = await publish(site, "fish & <chips>", 99)
    live = f"/applications/{published.application}/live"
    for path in (
        f"/applications/{published.application}",
        f"{live}?res={quote(published.resource, safe='')}",
        f"/deployments/{published.deployment}?stage=s1",
        f"/events/{published.event}",
    ):
        text = "".join(audit((await site.browser.get(path)).text).text)
        assert "fish & <chips>" in text


# Query parameters that a page could repeat.
ATTACKS_QUERIES = {
    "the sign-in page": "/login?project={}",
    "the page to return to": "/login?return={}",
    "the page to return to, as a link": "/login?return=javascript:alert(1)",
    "the page of another host": "/login?return=//evil.example/{}",
    "the filter of applications": "/applications?name={}&labels={}:{}",
    "the filter of deployments": "/deployments?applicationName={}&labels={}",
    "an application": "/applications/{}",
    "a deployment": "/deployments/{}",
    "a piped": "/settings/piped/{}",
    "the topics of live updates": "/_/stream?t={}",
    "the callback of single sign-on": "/auth/callback?error={}&error_description={}&state={}",
}


@pytest.mark.parametrize("path", ATTACKS_QUERIES.values(), ids=ATTACKS_QUERIES)
async def test_a_parameter_is_repeated_as_text(site: Site, path: str) -> None:
    payload = "%22%3E%3Cattack%20data-attack%3E"
    async with httpx2.AsyncClient(base_url=site.browser.base_url) as stranger:
        for browser in (site.browser, stranger):
            answer = await browser.get(path.replace("{}", payload), follow_redirects=True)
            assert answer.status_code < 500
            assert audit(answer.text).findings == []


SCRIPT = "javascript:alert(document.domain)"
ATTACKS_ENDPOINTS = {
    "the issuer": {"issuer": SCRIPT},
    "the authorization endpoint": {"authorization_endpoint": SCRIPT},
    "the token endpoint": {"token_endpoint": SCRIPT},
    "the user info endpoint": {"user_info_endpoint": SCRIPT},
    "the redirect URI": {"redirect_uri": SCRIPT},
    "an authorization endpoint of data": {"authorization_endpoint": "data:text/html,x"},
}


@pytest.mark.parametrize("fields", ATTACKS_ENDPOINTS.values(), ids=ATTACKS_ENDPOINTS)
async def test_a_script_is_no_endpoint_of_single_sign_on(
    site: Site, fields: dict[str, str]
) -> None:
    settings = {"client_id": "id", "client_secret": "s", "issuer": "https://idp.example", **fields}
    config = ProjectSSOConfig(
        provider=ProjectSSOConfig.OIDC, oidc=ProjectSSOConfig.Oidc(**settings)
    )
    with pytest.raises(UserMistake):
        await site.plane.cases.projects.set_sso(config, by=site.plane.admin)


# Logs that took quadratic time, or could not be shown at all.
ATTACKS_LOGS = {
    "a line that is erased over and over": "x" * 200_000 + "\x1b[2K" * 100_000,
    "a line that is erased to the cursor": "x" * 200_000 + "\x1b[1K" * 100_000,
    "a line that is written over": ("x" * 200 + "\r") * 5_000,
    "a code of 5,000 digits": "\x1b[" + "9" * 5_000 + "mfine",
    "a colour of 5,000 digits": "\x1b[38;5;" + "9" * 5_000 + "mfine",
    "many codes": "\x1b[" + "1;" * 50_000 + "mfine",
    "many colours": "\x1b[38;2;1;2;3mx" * 10_000,
    "sequences without an end": "\x1b[" * 200_000,
    "links that end nowhere": "https://" * 50_000 + "." * 100_000,
    "many links": "https://x.example " * 20_000,
    "titles without an end": "\x1b]" * 200_000,
}


@pytest.mark.parametrize("text", ATTACKS_LOGS.values(), ids=ATTACKS_LOGS)
def test_a_log_is_rendered_in_the_time_of_its_length(text: str) -> None:
    # A quadratic renderer does not end within the time of a test.
    html = str(ansi_html(text))
    assert "\x1b" not in html
    assert len(html) <= 20 * len(text)
    strip_ansi(text)


async def test_an_old_log_with_a_huge_code_is_shown(site: Site) -> None:
    deployment = (await publish(site, ATTACKS_LOGS["a code of 5,000 digits"], 98)).deployment
    answer = await site.browser.get(f"/deployments/{deployment}?stage=s1")
    assert answer.status_code == 200
    assert "fine" in answer.text


async def test_logs_are_rendered_off_the_event_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()

    def recorded(text: str, mark: re.Pattern[str] | None) -> object:
        threads.add(threading.current_thread())
        return ansi_html(text, mark)

    monkeypatch.setattr(stage_log, "ansi_html", recorded)
    deployment = (await publish(site, "off the loop", 97)).deployment
    await site.browser.get(f"/deployments/{deployment}?stage=s1")
    assert threads
    assert threading.main_thread() not in threads


def test_a_long_line_and_a_long_log_are_cut_on_the_page() -> None:
    blocks = [LogBlock(index=n, log="x" * 1_000_000, created_at=1) for n in range(100)]
    view = log_view(StoredLog((), tuple(blocks), completed=True), LogQuery())
    assert all(len(line.html) < MAX_BLOCK_CHARACTERS + 100 for line in view.lines)
    assert "more characters are in the raw log" in view.lines[-1].html
    assert (len(view.lines), view.before) == (40, 60)


ATTACKS_TOPICS = {
    "5,000 digits": "log:d:s:" + "9" * 5_000,
    "digits of another script": "log:d:s:\u0661",
    "an unknown kind": "<script>:x",
    "too many": ",".join(["apps"] * 21),
    "nothing": ",,,",
    "two logs": "log:d:s:0,log:d:s:1",
}


@pytest.mark.parametrize("topics", ATTACKS_TOPICS.values(), ids=ATTACKS_TOPICS)
def test_a_malformed_topic_is_the_clients_mistake(topics: str) -> None:
    with pytest.raises(UserMistake) as caught:
        parse_topics(topics)
    assert len(str(caught.value)) < 300


# Texts that a host of Git makes a link, a mention or markup of, where a comment forgets to mark them.
ATTACKS_COMMENTS = {
    "an address": ("see https://evil.example/login", "https://evil"),
    "an address in capitals": ("see HTTPS://evil.example/login", "HTTPS://evil"),
    "a domain": ("see www.evil.example", "www.evil"),
    "a mention": ("ask @everyone", "@everyone"),
    "an address of mail": ("ann@evil.example", "ann@evil"),
    "an issue": ("fixes #1", "#1"),
    "an issue of another repository": ("fixes org/repo#1", "#1"),
    "an issue by its prefix": ("fixes GH-1", "GH-1"),
    "a merge request": ("see !1", "!1"),
    "a label": ("~approved", "~approved"),
    "a milestone": ("%1", "%1"),
    "a snippet": ("$1", "$1"),
    "a link": ("[Approve](https://evil.example)", "Approve]("),
    "an image": ("![x](https://evil.example/pixel.png)", "![x]"),
    "HTML": ("<a href=//evil.example>x</a>", "<a"),
    "another line": ("x\n\n### Approved by Ann", "\n### Approved"),
    "another column": ("x | y", " | y"),
    "text from right to left": ("\u202egnp.exe", "\u202e"),
}


@pytest.mark.parametrize(("text", "forbidden"), ATTACKS_COMMENTS.values(), ids=ATTACKS_COMMENTS)
def test_a_text_in_a_comment_is_no_link(text: str, forbidden: str) -> None:
    result = PluginPlanPreviewResult(
        plugin_name="kubernetes", deploy_target="here", plan_summary=text.encode()
    )
    apps = [
        ApplicationPlanPreviewResult(application_name="web", error=text),
        ApplicationPlanPreviewResult(application_name="api", plugin_plan_results=[result]),
    ]
    [heading, *lines] = as_markdown([PlanPreviewCommandResult(results=apps)], "c0ffee").split("web")
    assert forbidden not in "".join(lines)
    assert heading.startswith("<!--")


MARKED = f"{MARKER}\nApproved."
OURS = {"id": 7, "login": "github-actions[bot]", "type": "Bot"}


def note(number: int, author: Mapping[str, object], body: str) -> dict[str, object]:
    return {"id": number, "user": author, "author": author, "body": body}


ATTACKS_BY_COMMENTS: dict[str, tuple[dict[str, object], ...]] = {
    "a comment with the marker by another user": (
        note(1, {"id": 8, "login": "mallory", "type": "User"}, MARKED),
    ),
    "a comment by a user with the name of a bot": (
        note(1, {"id": 8, "login": "github-actions[bot]", "type": "User"}, MARKED),
    ),
    "a comment by another bot": (note(1, {"id": 9, "login": "other[bot]", "type": "Bot"}, MARKED),),
    "another comment of ours": (note(1, OURS, f"> {MARKED}"),),
    "a comment of nobody": (note(1, {"id": None, "login": None, "type": None}, MARKED),),
}
SCRIPTS = Path(__file__).parents[2] / "deploy" / "ci"


def run_job(template: str, notes: Sequence[dict[str, object]], directory: Path) -> str:
    """Runs the job of a template against notes of a host; returns the requests that write."""
    script = yaml.safe_load((SCRIPTS / template).read_text())
    is_gitlab = template.startswith("gitlab")
    text = script["plan-preview"]["script"][-1] if is_gitlab else (
        script["jobs"]["plan-preview"]["steps"][-1]["run"]
    )  # fmt: skip
    (directory / "notes.json").write_text(json.dumps(notes))
    (directory / "user.json").write_text(json.dumps({"id": OURS["id"]}))
    stub = (
        '#!/bin/sh\ncase "$*" in\n*POST*|*PATCH*|*PUT*) echo "$*" >> written\n'
        # Without these flags the answer of the host, with the text of the comment, is printed.
        'case "$0 $*" in *gh\\ *--silent*|*curl\\ *"--output /dev/null"*) ;; *) cat comment.md ;; esac ;;\n'
        '*--jq*) for last; do :; done; jq "$last" notes.json ;;\n'
        "*/user) cat user.json ;;\n*) cat notes.json ;;\nesac\n"
    )
    for name in ("gh", "curl"):
        (directory / name).write_text(stub)
        (directory / name).chmod(0o755)
    variables = {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "COMMENTS": "comments",
        "NOTES": "notes",
        "GITHUB_REPOSITORY": "org/repo",
        "CI_API_V4_URL": "https://gitlab/api/v4",
        "GITLAB_API_TOKEN": "t",
    }
    (directory / "comment.md").write_text("##[add-mask]e\n")
    command = ["bash", "-e", "-c", text]
    job = subprocess.run(command, cwd=directory, env=variables, check=True, stdout=subprocess.PIPE)
    assert job.stdout == b""
    return (directory / "written").read_text()


TEMPLATES = ("github-plan-preview.yaml", "gitlab-plan-preview.yaml")


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("notes", ATTACKS_BY_COMMENTS.values(), ids=ATTACKS_BY_COMMENTS)
def test_only_a_comment_of_the_job_itself_is_replaced(
    template: str, notes: tuple[dict[str, object], ...], tmp_path: Path
) -> None:
    assert "POST" in run_job(template, notes, tmp_path)
    (tmp_path / "written").unlink()
    replaced = run_job(template, (*notes, note(42, OURS, MARKED)), tmp_path)
    assert "/42" in replaced
