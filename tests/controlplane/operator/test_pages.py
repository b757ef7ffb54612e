# SPDX-License-Identifier: Apache-2.0
"""The operator pages on a real port: projects are listed and added, passwords are reset."""

import re
from collections.abc import AsyncIterator

import httpx2
import pytest

from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.operator.pages import create_operator_pages
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.projects import ConfigProject, ProjectUseCases, StaticAdmin
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.errors import Unauthenticated
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser


@pytest.fixture
async def http(stores: Stores, bus: MemoryBus) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the pages, with one shared SSO config and no encryption key."""
    declared = [ConfigProject("declared", "root", "hash")]
    endings = SessionEndings(stores.session_endings, bus)
    projects = ProjectUseCases(stores, bus, Access(stores), endings, b"", declared)
    web = WebServer(create_operator_pages(projects, shared_sso=["company"]))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
        await web.stop()


def shown(page: str) -> StaticAdmin:
    """The username and password on a page."""
    found = dict(re.findall(r'<code id="(\w+)">([^<]*)</code>', page))
    return StaticAdmin(found["username"], found["password"])


async def test_a_project_is_added_and_its_admin_signs_in(
    http: httpx2.AsyncClient, cases: UseCases, stores: Stores
) -> None:
    form = {
        "ID": "shop",
        "Description": "The shop",
        "SharedSSO": "company",
        "AllowStrayAsViewer": "on",
    }
    added = await http.post("/projects/add", data=form)
    assert added.status_code == 200
    admin = shown(added.text)
    assert (len(admin.username), len(admin.password)) == (10, 30)
    assert (await cases.sessions.sign_in("shop", *admin)).user.name == admin.username
    project = await stores.projects.get("shop")
    assert (project.desc, project.shared_sso_name) == ("The shop", "company")
    assert project.allow_stray_as_viewer
    # The password is shown only once.
    listed = (await http.get("/projects")).text
    assert "The shop" in listed
    assert admin.password not in listed


async def test_text_is_escaped_on_the_page_and_not_in_the_store(
    http: httpx2.AsyncClient, stores: Stores
) -> None:
    odd = "<b>&\"'</b>"
    # An id that projects of upstream may have.
    admin = ProjectStaticUser(username="u", password_hash="hashed")
    await stores.projects.add(Project(id="r&d", desc=odd, static_admin=admin))
    assert (await stores.projects.get("r&d")).desc == odd
    listed = (await http.get("/projects")).text
    assert "<b>" not in listed
    assert "r&amp;d" in listed
    assert "/projects/reset-password?ID=r%26d" in listed
    form = (await http.get("/projects/reset-password", params={"ID": "r&d"})).text
    assert 'value="r&amp;d"' in form


@pytest.mark.parametrize(
    ("form", "status", "text"),
    [
        pytest.param({"ID": ""}, 400, "Invalid id.", id="without an id"),
        pytest.param({}, 400, "Invalid id.", id="empty"),
        pytest.param({"ID": "a/b"}, 400, "cannot be the ID", id="with an id that is a path"),
        pytest.param({"ID": "a,b"}, 400, "cannot be the ID", id="with an id that ends a token"),
        pytest.param({"ID": ".."}, 400, "cannot be the ID", id="with an id that climbs"),
        pytest.param({"ID": "x" * 51}, 400, "50 characters", id="with an id too long to be stored"),
        pytest.param(
            {"ID": "shop", "SharedSSO": "x"},
            400,
            'SharedSSOConfig "x" was not found in Control Plane configuration',
            id="with an unknown shared SSO config",
        ),
        pytest.param({"ID": "taken"}, 409, "Unable to add the project", id="that exists"),
        pytest.param(
            {"ID": "declared"}, 409, "Unable to add the project", id="of the configuration"
        ),
    ],
)
async def test_an_invalid_project_is_rejected(
    http: httpx2.AsyncClient, stores: Stores, form: dict[str, str], status: int, text: str
) -> None:
    await http.post("/projects/add", data={"ID": "taken"})
    rejected = await http.post("/projects/add", data=form)
    assert rejected.status_code == status
    assert text in rejected.text.replace("&#34;", '"')
    assert [project.id for project in await stores.projects.list()] == ["taken"]


async def test_a_password_is_reset_after_the_id_is_typed(
    http: httpx2.AsyncClient, cases: UseCases, static_admin: StaticAdmin
) -> None:
    form = await http.get("/projects/reset-password", params={"ID": "shop"})
    assert form.status_code == 200
    mistyped = await http.post(
        "/projects/reset-password", data={"ID": "shop", "confirmationID": "hop"}
    )
    assert "does not match the project" in mistyped.text
    assert await cases.sessions.sign_in("shop", *static_admin)
    done = await http.post(
        "/projects/reset-password", data={"ID": "shop", "confirmationID": "shop"}
    )
    fresh = shown(done.text)
    assert fresh.username == static_admin.username
    assert await cases.sessions.sign_in("shop", *fresh)
    with pytest.raises(Unauthenticated):
        await cases.sessions.sign_in("shop", *static_admin)


@pytest.mark.parametrize(
    ("id", "status"),
    [
        pytest.param("", 400, id="no project"),
        pytest.param("nowhere", 404, id="an unknown project"),
        pytest.param("declared", 404, id="a project of the configuration"),
    ],
)
async def test_no_password_is_reset_for(http: httpx2.AsyncClient, id: str, status: int) -> None:
    form = await http.get("/projects/reset-password", params={"ID": id})
    done = await http.post("/projects/reset-password", data={"ID": id, "confirmationID": id})
    assert (form.status_code, done.status_code) == (status, status)


async def test_every_other_path_leads_to_the_pages(http: httpx2.AsyncClient) -> None:
    for path in ("/", "/applicationcounts", "/projects/", "/favicon.ico"):
        page = await http.get(path)
        assert page.status_code == 200
        assert 'href="/projects/add"' in page.text
    assert (await http.get("/projects")).text.count("<tr>") == 0
    assert (await http.head("/projects")).status_code == 200
    assert (await http.get("/style.css")).headers["Content-Type"].startswith("text/css")


@pytest.mark.parametrize("path", ["/", "/projects", "/nowhere"])
async def test_other_paths_accept_no_form(http: httpx2.AsyncClient, path: str) -> None:
    response = await http.post(path, data={"ID": "shop"})
    assert (response.status_code, response.text) == (404, "not found")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="another site"),
        pytest.param({"Sec-Fetch-Site": "same-site"}, 403, id="the same site"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="another origin"),
        pytest.param({"Origin": "null"}, 403, id="an opaque origin"),
        pytest.param({"Host": "evil.example"}, 403, id="another host name"),
        pytest.param({"Sec-Fetch-Site": "same-origin"}, 200, id="the same origin"),
        pytest.param({}, 200, id="a program without a browser"),
    ],
)
async def test_cross_site_forms_are_rejected(
    http: httpx2.AsyncClient, stores: Stores, headers: dict[str, str], status: int
) -> None:
    response = await http.post("/projects/add", data={"ID": "shop"}, headers=headers)
    assert response.status_code == status
    assert bool(await stores.projects.list()) == (status == 200)


async def test_another_host_name_is_rejected(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/projects", headers={"Host": "evil.example"})).status_code == 403


async def test_a_large_form_is_rejected(http: httpx2.AsyncClient) -> None:
    response = await http.post("/projects/add", data={"ID": "shop", "Description": "x" * 70_000})
    assert response.status_code == 403

    async def endless() -> AsyncIterator[bytes]:
        yield b"ID=shop"

    assert (await http.post("/projects/add", content=endless())).status_code == 403


async def test_pages_run_no_script_and_are_not_cached(http: httpx2.AsyncClient) -> None:
    for path in ("/", "/projects", "/projects/add", "/projects/reset-password"):
        page = await http.get(path)
        assert page.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
        assert "<script" not in page.text
        assert "style=" not in page.text
