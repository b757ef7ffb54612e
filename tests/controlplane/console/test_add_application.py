# SPDX-License-Identifier: Apache-2.0
"""The page that registers applications found in Git or entered manually."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.console import OpenBrowser, SubmitForm

PAGE = "/applications/add"


def found(path: str = "apps/cart", **fields: Any) -> ApplicationInfo:
    given: dict[str, Any] = {
        "name": "cart",
        "repo_id": "site",
        "path": path,
        "config_filename": "app.pipecd.yaml",
        "labels": {"env": "dev"},
        "description": "the cart",
        **fields,
    }
    return ApplicationInfo(**given)


@dataclass
class AddPage:
    """The page in a browser, and the piped that reports what can be added."""

    client: httpx2.AsyncClient
    submit_form: SubmitForm
    cases: UseCases
    admin: User
    piped: PipedCaller
    meta: ReportPipedMetaRequest

    @property
    def form(self) -> dict[str, str]:
        """The fields that the form of the unregistered application submits."""
        file = {"repository": "site", "path": "apps/cart", "file": "app.pipecd.yaml"}
        return {"piped": self.piped.piped, **file}

    async def report(
        self,
        *infos: ApplicationInfo,
        providers: Sequence[tuple[str, str]] = (),
        plugins: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        """Reports providers, plugins and found applications as the piped."""
        for type_, name in providers:
            self.meta.platform_providers.append(Piped.PlatformProvider(name=name, type=type_))
        for name, targets in plugins:
            self.meta.plugins.append(Piped.Plugin(name=name, deploy_targets=targets))
        await self.cases.pipeds.report_meta(self.meta, by=self.piped)
        await self.cases.pipeds.report_stat(b"up 1", by=self.piped)
        await self.cases.application_reports.report_unregistered(infos, by=self.piped)

    async def page(self, query: str = "") -> str:
        return (await self.client.get(f"{PAGE}{query}")).text

    async def submit(self, **typed: Any) -> httpx2.Response:
        """Sends the form of the found application, with these fields instead of its own."""
        return await self.submit_form(self.client, PAGE, PAGE, **{**self.form, **typed})

    async def registered(self) -> list[Application]:
        everything = ApplicationFilter(self.admin.project)
        return list((await self.cases.applications.list(everything, by=self.admin)).items)


@pytest.fixture
def add_page(
    *,
    admin_browser: httpx2.AsyncClient,
    submit_form: SubmitForm,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> AddPage:
    return AddPage(admin_browser, submit_form, cases, admin, piped, meta)


async def test_found_applications_are_listed_with_the_only_target_selected(
    add_page: AddPage,
) -> None:
    await add_page.report(
        found(),
        found("infra", name="net", kind=common.TERRAFORM),
        providers=[("KUBERNETES", "eu"), ("TERRAFORM", "tf-a"), ("TERRAFORM", "tf-b")],
    )
    page = await add_page.page()
    assert "2 applications were found in Git." in page
    for text in (
        "apps/cart/<wbr>app.pipecd.yaml",
        "env: dev",
        "<small>Repository <bdi>site</bdi></small>",
        "Terraform",
        "dev</bdi><small",
    ):
        assert text in page
    cart, net = page.split('data-testid="found-row"')[1:]
    assert "Choose a provider" not in cart
    assert 'value="TERRAFORM/tf-a"' not in cart
    assert "Choose a provider" in net.partition("</table>")[0]
    assert 'data-topics="apps,pipeds"' in page


async def test_a_found_application_is_added_with_its_metadata(add_page: AddPage) -> None:
    await add_page.report(found(kind=common.TERRAFORM), providers=[("TERRAFORM", "tf-a")])
    response = await add_page.submit(target="TERRAFORM/tf-a")
    (added,) = await add_page.registered()
    assert response.status_code == 303
    assert response.headers["location"] == f"/applications/{added.id}?added=1"
    assert (added.name, added.description, dict(added.labels)) == (
        "cart",
        "the cart",
        {"env": "dev"},
    )
    assert (added.kind, added.platform_provider) == (common.TERRAFORM, "tf-a")
    assert added.git_path.path == "apps/cart"
    assert added.git_path.repo.remote == "git@github.com:shop/site.git"
    page = (await add_page.client.get(response.headers["location"])).text
    assert "Added. Piped dev reads its configuration and deploys it in a moment." in page
    # Not listed any more, although the piped has not reported again.
    assert "No unregistered applications" in await add_page.page()


async def test_deploy_targets_are_stored_by_plugin(add_page: AddPage) -> None:
    await add_page.report(found(), plugins=[("kubernetes", ["eu", "us"]), ("terraform", ["tf"])])
    response = await add_page.submit()
    assert response.status_code == 422
    assert "Choose a deploy target." in response.text
    # A page with a form error does not update itself.
    assert "data-topics" not in response.text
    chosen: Any = ["kubernetes/us", "terraform/tf"]
    await add_page.submit(target=chosen)
    (added,) = await add_page.registered()
    targets = {k: list(v.deploy_targets) for k, v in added.deploy_targets_by_plugin.items()}
    assert targets == {"kubernetes": ["us"], "terraform": ["tf"]}
    assert added.platform_provider == ""


async def test_a_kind_that_the_piped_cannot_deploy_is_not_added(add_page: AddPage) -> None:
    await add_page.report(found(kind=common.ECS), providers=[("KUBERNETES", "eu")])
    page = await add_page.page()
    assert page.count(" disabled title=") == 1
    response = await add_page.submit()
    assert "no platform provider for ECS" in response.text.partition("form-error")[2]
    assert await add_page.registered() == []


async def test_the_only_target_is_checked(add_page: AddPage) -> None:
    await add_page.report(found(), plugins=[("kubernetes", ["eu"]), ("wait", [])])
    page = await add_page.page()
    assert 'value="kubernetes/eu" checked' in page


async def test_a_double_click_adds_once(add_page: AddPage) -> None:
    await add_page.report(found())
    responses = await asyncio.gather(*(add_page.submit() for _ in range(3)))
    assert len({response.headers["location"] for response in responses}) == 1
    assert len(await add_page.registered()) == 1


async def test_an_application_added_meanwhile_is_rejected_with_the_reason(
    add_page: AddPage,
    advance: Callable[[float], None],
) -> None:
    await add_page.report(found())
    await add_page.submit()
    advance(10)
    response = await add_page.submit()
    assert response.status_code == 422
    assert "it was added meanwhile, or removed from Git" in response.text


async def test_any_application_can_be_added_manually(
    add_page: AddPage,
    advance: Callable[[float], None],
) -> None:
    await add_page.report(providers=[("KUBERNETES", "eu"), ("ECS", "ecs")])
    typed = {"form": "manual", "name": "shop", "path": "a/", "target": "ECS/ecs"}
    response = await add_page.submit(**typed)
    assert response.status_code == 303
    (added,) = await add_page.registered()
    assert (added.name, added.kind, added.platform_provider) == ("shop", common.ECS, "ecs")
    assert (added.git_path.path, added.git_path.config_filename) == ("./a", "app.pipecd.yaml")
    advance(10)
    response = await add_page.submit(**typed)
    assert "This application is already registered as shop." in response.text


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        pytest.param({"name": " "}, "Give the application a name.", id="no name"),
        pytest.param({"path": "/apps"}, "without a leading slash", id="an absolute directory"),
        pytest.param({"path": "apps/../../x"}, "inside the repository", id="a way out"),
        pytest.param({"file": "x/y.yaml"}, "must not contain a slash", id="a file elsewhere"),
        pytest.param({"repository": ""}, "Choose a repository.", id="no repository"),
        pytest.param(
            {"repository": "other"}, "repository is not found", id="an unknown repository"
        ),
        pytest.param({"piped": "nobody"}, "The piped no longer exists", id="an unknown piped"),
        pytest.param({"target": ""}, "Choose one platform provider.", id="no provider"),
    ],
)
async def test_an_invalid_form_shows_the_reason_and_keeps_its_values(
    wrong: dict[str, str],
    mistake: str,
    add_page: AddPage,
) -> None:
    await add_page.report(providers=[("KUBERNETES", "eu"), ("KUBERNETES", "us")])
    right = {**add_page.form, "form": "manual", "name": "shop", "target": "KUBERNETES/us"}
    typed = {**right, **wrong}
    response = await add_page.submit(**typed)
    assert response.status_code == 422
    manual = response.text.partition('data-testid="manual"')[2]
    assert mistake in manual
    assert f'name="path" value="{typed["path"]}"' in manual
    if typed["target"]:
        assert 'value="KUBERNETES/us" selected' in manual
    assert await add_page.registered() == []


async def test_a_viewer_sees_found_applications_and_cannot_add_them(
    open_browser: OpenBrowser,
    viewer: User,
    add_page: AddPage,
) -> None:
    await add_page.report(found())
    as_viewer = replace(add_page, client=open_browser(viewer))
    page = await as_viewer.page()
    assert "apps/cart" in page
    assert page.count(" disabled title=") == 1
    assert "Add manually" in page
    assert "manual-name" not in page
    assert "Your role (Viewer) does not allow this" in page
    response = await as_viewer.submit()
    assert response.status_code == 422
    assert "Your roles do not allow this" in response.text
    assert await add_page.registered() == []


async def test_a_role_limited_by_labels_adds_applications_with_them(
    cases: UseCases,
    admin: User,
    open_browser: OpenBrowser,
    add_page: AddPage,
) -> None:
    policies = parse_policies(
        "resources=application{env:dev};actions=*\n\nresources=piped;actions=list"
    )
    await cases.roles.add("Dev", policies, by=admin)
    await add_page.report(found(), found("apps/prod", name="prod", labels={"env": "prod"}))
    dora = replace(add_page, client=open_browser(User(admin.project, "dora", ("Dev",))))
    page = await dora.page()
    assert "apps/cart" in page
    assert "apps/prod" not in page
    # An application that is added manually has no labels yet, so the page does not offer it.
    assert "manual-name" not in page
    response = await dora.submit(form="manual", name="x", path="elsewhere")
    assert "Your roles do not allow this" in response.text
    assert (await dora.submit()).status_code == 303
    assert len(await add_page.registered()) == 1


async def test_a_form_of_another_session_is_rejected(add_page: AddPage) -> None:
    await add_page.report(found())
    response = await add_page.client.post(PAGE, data={**add_page.form, "csrf": "made up"})
    assert response.status_code == 403
    assert await add_page.registered() == []


async def test_a_long_list_is_truncated_and_searchable(add_page: AddPage) -> None:
    await add_page.report(*(found(f"apps/a{number}", name=f"a{number}") for number in range(120)))
    page = await add_page.page()
    assert page.count('data-testid="found-row"') == 50
    assert "70 more are not shown" in page
    page = await add_page.page("?q=a11")
    assert page.count('data-testid="found-row"') == 11
    assert "No application matches" in await add_page.page("?q=zzz")


async def test_the_manual_form_follows_the_selected_piped(
    add_page: AddPage,
    cases: UseCases,
    other_piped: PipedCaller,
) -> None:
    await add_page.report()
    page = await add_page.page()
    assert f'name="piped" value="{other_piped.piped}"' not in page
    page = await add_page.page(f"?piped={other_piped.piped}")
    assert "Piped <bdi>prod</bdi> has not reported any repository." in page
    repository = common.ApplicationGitRepository(id="second", remote="r", branch="main")
    meta = ReportPipedMetaRequest(version="v1", repositories=[repository], config="{}")
    await cases.pipeds.report_meta(meta, by=other_piped)
    page = await add_page.page(f"?piped={other_piped.piped}")
    assert f'name="piped" value="{other_piped.piped}"' in page
    assert "<option>second</option>" in page


async def test_data_of_files_is_escaped(add_page: AddPage) -> None:
    bad = "<script>alert(1)</script>"
    await add_page.report(found(f"apps/{bad}", name=bad, labels={bad: bad}))
    assert "<script>alert" not in await add_page.page()


async def test_the_page_of_a_project_without_pipeds_says_so(
    admin_browser: httpx2.AsyncClient,
) -> None:
    page = (await admin_browser.get(PAGE)).text
    assert "No piped is enabled" in page
    assert 'class="btn primary" href="/settings/piped#add"' in page
    assert 'data-testid="manual"' not in page


async def test_several_found_applications_are_added_at_once(add_page: AddPage) -> None:
    await add_page.report(
        found(),
        found("apps/web", name="web"),
        found("infra", name="net", kind=common.TERRAFORM),
        providers=[("KUBERNETES", "eu"), ("TERRAFORM", "tf-a"), ("TERRAFORM", "tf-b")],
    )
    page = await add_page.page()
    boxes = re.findall(r'name="found" value="([^"]+)"[^>]*?(disabled)?[^>]*>', page)
    # The one with two providers needs somebody who chooses.
    assert len(boxes) == 3
    assert "Choose its deploy target and add it by itself" in page
    csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
    assert csrf
    anchors = [anchor for anchor, _ in boxes]
    response = await add_page.client.post(
        f"{PAGE}/several", data={"csrf": csrf[1], "found": [*anchors, "found-nothing"]}
    )
    assert "2 applications are added" in response.text
    assert "2 could not be added" in response.text
    assert "Choose one platform provider." in response.text
    assert "It is no longer unregistered" in response.text
    assert sorted(a.name for a in await add_page.registered()) == ["cart", "web"]


async def test_adding_several_needs_a_ticked_application(add_page: AddPage) -> None:
    await add_page.report(found(), found("apps/web", name="web"))
    response = await add_page.submit_form(add_page.client, PAGE, f"{PAGE}/several")
    assert response.status_code == 422
    assert "Tick the applications to add." in response.text
