# SPDX-License-Identifier: Apache-2.0
"""The pages of deployment chains, of events and of deployment traces."""

import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.chains import Matcher
from pipecd.controlplane.usecases.events import EventReport
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from servers.console import OpenBrowser

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
async def chain(
    cases: UseCases,
    piped: PipedCaller,
    admin: User,
    draft: Application,
    new_deployment: Callable[[], Deployment],
) -> str:
    """The chain of cart, which shop follows."""
    draft.name, draft.git_path.path = "shop", "apps/shop"
    await cases.applications.add(draft, by=admin)
    first = new_deployment()
    await cases.chains.create(first, [Matcher(name="shop")], by=piped)
    return first.deployment_chain_id


async def test_chains_are_listed_with_the_applications_that_follow(
    admin_browser: httpx2.AsyncClient, chain: str
) -> None:
    page = (await admin_browser.get("/chains")).text
    assert f'href="/chains/{chain}"' in page
    assert re.findall(r"<bdi>(.*?)</bdi></span>", page) == ["cart", "shop"]
    assert 'data-topics="chains"' in page


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        pytest.param("q=SHO", True, id="a part of the name of an application"),
        pytest.param("q=search", False, id="another application"),
        pytest.param("status=pending", True, id="its status"),
        pytest.param("status=success", False, id="another status"),
        pytest.param("status=other", True, id="an unknown status"),
    ],
)
async def test_filters_of_chains_are_in_the_url(
    query: str, is_there: bool, admin_browser: httpx2.AsyncClient, chain: str
) -> None:
    page = (await admin_browser.get(f"/chains?{query}")).text
    assert (f'id="chain-{chain}"' in page) is is_there
    assert ("No chain matches" in page) is not is_there


async def test_a_chain_is_listed_with_the_commit_that_started_it(
    admin_browser: httpx2.AsyncClient, chain: str
) -> None:
    assert chain
    page = (await admin_browser.get("/chains")).text
    assert 'data-testid="chain-start"' in page


async def test_without_chains_the_list_says_how_to_configure_one(
    admin_browser: httpx2.AsyncClient,
) -> None:
    assert "postSync:" in (await admin_browser.get("/chains")).text


async def test_the_page_of_a_chain_shows_its_blocks(
    admin_browser: httpx2.AsyncClient, chain: str
) -> None:
    page = (await admin_browser.get(f"/chains/{chain}")).text
    assert page.count('data-testid="chain-block"') == 2
    assert "Block 1 of 2 is in progress" in page
    assert "Starts when block 1 has succeeded" in page
    assert f'data-topics="chain:{chain}"' in page


@pytest.mark.parametrize("path", ["/chains/{chain}", "/chains/nothing", "/events/nothing"])
async def test_objects_of_other_projects_and_unknown_ones_are_not_shown(
    path: str, open_browser: OpenBrowser, stranger: User, chain: str
) -> None:
    answer = await open_browser(stranger).get(path.format(chain=chain))
    assert answer.status_code in (403, 404)
    assert "cart" not in answer.text


@pytest.fixture
def register(cases: UseCases, program: ApiKeyCaller) -> Callable[..., object]:
    async def register_event(name: str, data: str, **fields: Any) -> str:
        request = RegisterEventRequest(name=name, data=data, labels={"app": "cart"}, **fields)
        return await cases.events.register(request, by=program)

    return register_event


async def test_a_failed_event_shows_its_reason(
    cases: UseCases, piped: PipedCaller, admin_browser: httpx2.AsyncClient, register: Callable
) -> None:
    id = await register("image", "v1.4.2")
    report = EventReport(id, pb.EVENT_FAILURE, "the file has no such field")
    await cases.events.report_statuses([report], by=piped)
    for path in ("/events", f"/events/{id}"):
        page = (await admin_browser.get(path)).text
        assert "The file has no such field." in page
        assert "v1.4.2" in page
        assert "Failed" in page


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        pytest.param("", True, id="no filter"),
        pytest.param("name=image", True, id="its name"),
        pytest.param("name=chart", False, id="another name"),
        pytest.param("q=1.4", True, id="a part of its value"),
        pytest.param("q=IMA", True, id="a part of its name in capitals"),
        pytest.param("q=nothing", False, id="another text"),
        pytest.param("status=0", True, id="its status, with the number of the upstream console"),
        pytest.param("status=1", False, id="another status"),
        pytest.param("labels[0]=app:cart", True, id="its label"),
        pytest.param("q=app: cart", True, id="its label as the list shows it"),
        pytest.param(f"q={COMMIT[:7]}", True, id="the commit that it was built from"),
        pytest.param("labels[0]=app:shop", False, id="another label"),
    ],
)
async def test_filters_of_events_are_in_the_url(
    query: str, is_there: bool, admin_browser: httpx2.AsyncClient, register: Callable
) -> None:
    id = await register("image", "v1.4.2", commit_hash=COMMIT)
    page = (await admin_browser.get(f"/events?{query}")).text
    assert (f'id="event-{id}"' in page) is is_there


async def test_every_event_is_reachable_however_old_it_is(
    open_browser: OpenBrowser,
    admin: User,
    register: Callable,
    advance: Callable[[float], None],
) -> None:
    ids = set[str]()
    for number in range(60):
        ids.add(await register("image", f"v{number}"))
        advance(86400)
    browser = open_browser(admin)
    path, seen = "/events", list[str]()
    while path:
        page = (await browser.get(path)).text
        seen += (part.partition('"')[0] for part in page.split('<tr id="event-')[1:])
        _, _, link = page.partition('rel="next" href="')
        path = link.partition('"')[0].replace("&amp;", "&")
    assert len(seen) == 60
    assert set(seen) == ids


async def test_a_trace_shows_what_a_commit_deployed(
    *,
    cases: UseCases,
    piped: PipedCaller,
    admin_browser: httpx2.AsyncClient,
    register: Callable,
    new_deployment: Callable[[], Deployment],
) -> None:
    event = await register(
        "image",
        "v1",
        commit_hash=COMMIT,
        commit_url="https://git.example/c",
        commit_title="Retry cards",
        commit_author="ann",
    )
    page = (await admin_browser.get("/deployment-traces")).text
    assert "Retry cards" in page
    assert "Nothing deployed yet" in page
    deployment = new_deployment()
    deployment.deployment_trace_commit_hash = COMMIT
    await cases.deployment_reports.create(deployment, by=piped)
    page = (await admin_browser.get("/deployment-traces")).text
    assert "1 pending" in page
    assert f'href="/deployments/{deployment.id}"' in page
    # The event that began the trace leads to the same deployments.
    assert (
        f'href="/deployments/{deployment.id}"' in (await admin_browser.get(f"/events/{event}")).text
    )


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        pytest.param(f"commitHash={COMMIT}", True, id="the whole hash"),
        pytest.param(f"commitHash={COMMIT[:7]}", True, id="the beginning of the hash"),
        pytest.param("commitHash=fffffff", False, id="another hash"),
        pytest.param("q=CARDS", True, id="a word of the title"),
        pytest.param("q=ann", True, id="the author"),
        pytest.param("status=none", True, id="nothing deployed yet"),
        pytest.param("status=none&q=nobody", False, id="nothing deployed yet, another text"),
        pytest.param("status=failed", False, id="none of its deployments failed"),
        pytest.param("status=running", False, id="none of its deployments is in progress"),
        pytest.param("status=succeeded", False, id="none of its deployments succeeded"),
        pytest.param("status=other", True, id="an unknown status"),
    ],
)
async def test_traces_are_found(
    query: str, is_there: bool, admin_browser: httpx2.AsyncClient, register: Callable
) -> None:
    await register(
        "image",
        "v1",
        commit_hash=COMMIT,
        commit_url="https://git.example/c",
        commit_title="Retry cards",
        commit_author="ann",
    )
    page = (await admin_browser.get(f"/deployment-traces?{query}")).text
    assert ('data-testid="trace-row"' in page) is is_there
