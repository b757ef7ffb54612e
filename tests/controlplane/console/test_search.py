# SPDX-License-Identifier: Apache-2.0
"""The search over everything, and the documentation of this version."""

import re

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.documentation import Document, read_documents
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.console import OpenBrowser, PipedReports


@pytest.mark.parametrize(
    ("query", "target"),
    [
        pytest.param("car", "/applications/{application}", id="a part of the name"),
        pytest.param("CART", "/applications/{application}", id="in capitals"),
        pytest.param("coffee", "/deployments/{deployment}", id="a word of a commit message"),
        pytest.param("c0ffee", "/deployments/{deployment}", id="a commit"),
        pytest.param("dev", "/settings/piped/{piped}", id="a piped"),
        pytest.param("insi", "/insights", id="a page"),
        pytest.param("event wat", "/help/event-watcher", id="a page of the documentation"),
        pytest.param(
            "How do I configure a canary?", "/help/kubernetes#canary", id="a question to the guide"
        ),
        pytest.param(
            "0123456789", "/deployment-traces?commitHash=0123456789", id="a commit of the source"
        ),
        pytest.param("key generate", "/settings/api-key", id="an action, in any order of words"),
        pytest.param("cart", "/applications/{application}/sync", id="an action on an application"),
    ],
)
async def test_the_search_finds(
    query: str,
    target: str,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    deployment: Deployment,
) -> None:
    page = (await admin_browser.get("/search", params={"q": query})).text
    path = target.format(
        application=application.id, deployment=deployment.id, piped=application.piped_id
    )
    assert f'"{path}"' in page


async def test_what_can_be_done_stands_above_the_deployments(
    admin_browser: httpx2.AsyncClient, application: Application, deployment: Deployment
) -> None:
    page = (await admin_browser.get("/search", params={"q": "cart"})).text
    action, deployed = f"/applications/{application.id}/sync", f"/deployments/{deployment.id}"
    assert 0 < page.index(action) < page.index(deployed)


async def test_a_deployment_that_was_found_says_when_it_began(
    admin_browser: httpx2.AsyncClient, deployment: Deployment
) -> None:
    page = (await admin_browser.get("/search", params={"q": "cart"})).text
    found = page.partition(f'href="/deployments/{deployment.id}"')[2].partition("</a>")[0]
    assert re.search(r'<span class="when"><time [^>]*data-ago>just now</time>', found)


async def test_a_viewer_is_offered_no_action(
    open_browser: OpenBrowser, viewer: User, application: Application
) -> None:
    page = (await open_browser(viewer).get("/search?q=cart")).text
    assert "the documentation has it" not in page
    assert f'"/applications/{application.id}"' in page
    assert "/sync" not in page


async def test_a_search_says_that_only_the_documentation_has_it(
    admin_browser: httpx2.AsyncClient,
) -> None:
    page = (await admin_browser.get("/search", params={"q": "kustomize"})).text
    assert "No application, deployment, piped or page matches “kustomize”" in page


async def test_other_projects_are_not_searched(
    open_browser: OpenBrowser, stranger: User, deployment: Deployment
) -> None:
    page = (await open_browser(stranger).get("/search?q=c0ffee")).text
    assert deployment.id not in page
    assert "Nothing matches" in page


async def test_an_empty_search_offers_pages_and_actions(admin_browser: httpx2.AsyncClient) -> None:
    page = (await admin_browser.get("/search")).text
    assert ">Pages</h2>" in page
    assert ">Actions</h2>" in page


async def test_every_page_of_the_documentation_is_shown(admin_browser: httpx2.AsyncClient) -> None:
    index = (await admin_browser.get("/help")).text
    names = re.findall(r'href="/help/([a-z-]+)" data-testid="document"', index)
    assert set(names) == set(read_documents()) - {"whats-new"}
    assert len(names) == len(set(names)) > 20
    # Each says in a line what it is about.
    lines = re.findall(r'data-testid="document">[^<]+</a><small>([^<]+)</small>', index)
    assert len(lines) == len(names)
    assert max(map(len, lines)) <= 60
    assert ">More</h2>" not in index
    for name in (*names, "whats-new"):
        answer = await admin_browser.get(f"/help/{name}")
        assert answer.status_code == 200, name
        assert '<article class="markdown">' in answer.text
        # The issues of a change are of no use without their tracker.
        assert not re.search(r"\(#\d+\)", answer.text), name


async def test_links_of_the_documentation_lead_to_pages_of_it(
    admin_browser: httpx2.AsyncClient,
) -> None:
    page = (await admin_browser.get("/help/console")).text
    assert 'href="/help/chains"' in page
    assert (await admin_browser.get("/help/nothing")).status_code == 404


async def test_every_page_names_the_version(admin_browser: httpx2.AsyncClient) -> None:
    assert 'data-testid="program-version">PipeCD v' in (await admin_browser.get("/overview")).text


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        pytest.param("# T\n\nFirst. Second.\n", "First.", id="the first sentence"),
        pytest.param("# T\n\nSee [the guide](g.md) `x`.", "See the guide x.", id="without marks"),
        pytest.param("# T\n\n![A picture](a.svg)\n\nText.", "Text.", id="not a picture"),
        pytest.param("# T\n\n| a |\n|---|\n", "", id="no table"),
    ],
)
def test_a_page_of_the_documentation_is_summarized(text: str, summary: str) -> None:
    assert Document("t", text).summary == summary


async def test_an_application_that_waits_has_the_words_of_its_list(
    admin_browser: httpx2.AsyncClient, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s2", StageStatus.RUNNING)
    for path in ("/applications", "/search?q=cart"):
        page = (await admin_browser.get(path)).text
        row = page.partition(f'"/applications/{deployment.application_id}"')
        around = row[0][-900:] + row[2][:900]
        assert "Waiting for approval" in around, path
