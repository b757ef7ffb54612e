# SPDX-License-Identifier: Apache-2.0
"""Applications are added on a page: those found in Git, and any other by hand."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
class Adding:
    """The page in somebody's browser, and the piped that finds what is added there."""

    client: httpx2.AsyncClient
    sends: Callable[..., Awaitable[httpx2.Response]]
    cases: UseCases
    admin: User
    piped: PipedCaller
    meta: ReportPipedMetaRequest

    @property
    def form(self) -> dict[str, str]:
        """What the form of the found application sends."""
        file = {"repository": "site", "path": "apps/cart", "file": "app.pipecd.yaml"}
        return {"piped": self.piped.piped, **file}

    async def tells(
        self,
        *infos: ApplicationInfo,
        providers: Sequence[tuple[str, str]] = (),
        plugins: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        """Lets the piped tell what it has and what it found."""
        for type_, name in providers:
            self.meta.platform_providers.append(Piped.PlatformProvider(name=name, type=type_))
        for name, targets in plugins:
            self.meta.plugins.append(Piped.Plugin(name=name, deploy_targets=targets))
        await self.cases.pipeds.meta_reported(self.meta, by=self.piped)
        await self.cases.pipeds.stat_reported(b"up 1", by=self.piped)
        await self.cases.application_reports.unregistered(infos, by=self.piped)

    async def page(self, query: str = "") -> str:
        return (await self.client.get(f"{PAGE}{query}")).text

    async def send(self, **typed: Any) -> httpx2.Response:
        """Sends the form of the found application, with these fields instead of its own."""
        return await self.sends(self.client, PAGE, PAGE, **{**self.form, **typed})

    async def registered(self) -> list[Application]:
        everything = ApplicationFilter(self.admin.project)
        return list((await self.cases.applications.listed(everything, by=self.admin)).items)


@pytest.fixture
def adding(
    *,
    browser_of_admin: httpx2.AsyncClient,
    send: Callable[..., Awaitable[httpx2.Response]],
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> Adding:
    return Adding(browser_of_admin, send, cases, admin, piped, meta)


async def test_what_was_found_is_offered_with_the_only_choice_made(adding: Adding) -> None:
    await adding.tells(
        found(),
        found("infra", name="net", kind=common.TERRAFORM),
        providers=[("KUBERNETES", "eu"), ("TERRAFORM", "tf-a"), ("TERRAFORM", "tf-b")],
    )
    page = await adding.page()
    assert "2 applications were found in Git" in page
    for text in ("apps/cart", "env: dev", "site · app.pipecd.yaml", "Terraform", "dev <span"):
        assert text in page
    cart, net = page.split('data-testid="found-row"')[1:]
    assert "Choose a provider" not in cart
    assert 'value="TERRAFORM/tf-a"' not in cart
    assert "Choose a provider" in net.partition("</table>")[0]
    assert 'data-topics="apps,pipeds"' in page


async def test_adding_a_found_application_takes_all_that_git_says(adding: Adding) -> None:
    await adding.tells(found(kind=common.TERRAFORM), providers=[("TERRAFORM", "tf-a")])
    answer = await adding.send(place="TERRAFORM/tf-a")
    (added,) = await adding.registered()
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/applications/{added.id}?added=1"
    assert (added.name, added.description, dict(added.labels)) == (
        "cart",
        "the cart",
        {"env": "dev"},
    )
    assert (added.kind, added.platform_provider) == (common.TERRAFORM, "tf-a")
    assert added.git_path.path == "apps/cart"
    assert added.git_path.repo.remote == "git@github.com:shop/site.git"
    page = (await adding.client.get(answer.headers["location"])).text
    assert "Added. Piped dev reads its file and deploys it in a moment." in page
    # The piped has not told its list anew, and still it is not offered twice.
    assert "Pipeds found nothing to add" in await adding.page()


async def test_the_targets_of_plugins_are_chosen_by_plugin(adding: Adding) -> None:
    await adding.tells(found(), plugins=[("kubernetes", ["eu", "us"]), ("terraform", ["tf"])])
    answer = await adding.send()
    assert answer.status_code == 422
    assert "Choose where it is deployed to." in answer.text
    # A page that tells of a mistake is not replaced by what happens meanwhile.
    assert "data-topics" not in answer.text
    chosen: Any = ["kubernetes/us", "terraform/tf"]
    await adding.send(place=chosen)
    (added,) = await adding.registered()
    targets = {k: list(v.deploy_targets) for k, v in added.deploy_targets_by_plugin.items()}
    assert targets == {"kubernetes": ["us"], "terraform": ["tf"]}
    assert added.platform_provider == ""


async def test_a_kind_that_the_piped_cannot_deploy_is_not_added(adding: Adding) -> None:
    await adding.tells(found(kind=common.ECS), providers=[("KUBERNETES", "eu")])
    page = await adding.page()
    assert page.count(" disabled title=") == 1
    answer = await adding.send()
    assert "no platform provider for ECS" in answer.text.partition("form-error")[2]
    assert await adding.registered() == []


async def test_the_only_target_is_ticked(adding: Adding) -> None:
    await adding.tells(found(), plugins=[("kubernetes", ["eu"]), ("wait", [])])
    page = await adding.page()
    assert 'value="kubernetes/eu" checked' in page


async def test_a_double_click_adds_once(adding: Adding) -> None:
    await adding.tells(found())
    answers = await asyncio.gather(*(adding.send() for _ in range(3)))
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert len(await adding.registered()) == 1


async def test_what_somebody_else_added_meanwhile_is_refused_with_the_reason(
    adding: Adding,
    advance: Callable[[float], None],
) -> None:
    await adding.tells(found())
    await adding.send()
    advance(10)
    answer = await adding.send()
    assert answer.status_code == 422
    assert "somebody has added it, or it is gone from Git" in answer.text


async def test_any_application_can_be_added_by_hand(
    adding: Adding,
    advance: Callable[[float], None],
) -> None:
    await adding.tells(providers=[("KUBERNETES", "eu"), ("ECS", "ecs")])
    typed = {"form": "by-hand", "name": "shop", "path": "a/", "place": "ECS/ecs"}
    answer = await adding.send(**typed)
    assert answer.status_code == 303
    (added,) = await adding.registered()
    assert (added.name, added.kind, added.platform_provider) == ("shop", common.ECS, "ecs")
    assert (added.git_path.path, added.git_path.config_filename) == ("./a", "app.pipecd.yaml")
    advance(10)
    answer = await adding.send(**typed)
    assert "It is registered already, as shop." in answer.text


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        pytest.param({"name": " "}, "Give the application a name.", id="no name"),
        pytest.param({"path": "/apps"}, "without a slash", id="an absolute directory"),
        pytest.param({"path": "apps/../../x"}, "inside of the repository", id="a way out"),
        pytest.param({"file": "x/y.yaml"}, "its name has no slash", id="a file elsewhere"),
        pytest.param({"repository": ""}, "Choose a repository.", id="no repository"),
        pytest.param(
            {"repository": "other"}, "repository is not found", id="a repository of nobody"
        ),
        pytest.param({"piped": "nobody"}, "The piped is not there", id="a piped of nobody"),
        pytest.param({"place": ""}, "Choose one platform provider.", id="no provider"),
    ],
)
async def test_a_mistake_is_told_at_the_form_and_keeps_what_was_typed(
    wrong: dict[str, str],
    mistake: str,
    adding: Adding,
) -> None:
    await adding.tells(providers=[("KUBERNETES", "eu"), ("KUBERNETES", "us")])
    right = {**adding.form, "form": "by-hand", "name": "shop", "place": "KUBERNETES/us"}
    typed = {**right, **wrong}
    answer = await adding.send(**typed)
    assert answer.status_code == 422
    by_hand = answer.text.partition('data-testid="by-hand"')[2]
    assert mistake in by_hand
    assert f'name="path" value="{typed["path"]}"' in by_hand
    if typed["place"]:
        assert 'value="KUBERNETES/us" selected' in by_hand
    assert await adding.registered() == []


async def test_who_may_only_look_sees_what_was_found_and_cannot_add_it(
    someone: Callable[..., httpx2.AsyncClient],
    viewer: User,
    adding: Adding,
) -> None:
    await adding.tells(found())
    looking = replace(adding, client=someone(viewer))
    page = await looking.page()
    assert "apps/cart" in page
    assert page.count(" disabled title=") == 2
    assert "Your roles (Viewer) do not allow this" in page
    answer = await looking.send()
    assert answer.status_code == 422
    assert "Your roles do not allow this" in answer.text
    assert await adding.registered() == []


async def test_a_role_for_some_labels_adds_what_carries_them(
    cases: UseCases,
    admin: User,
    someone: Callable[..., httpx2.AsyncClient],
    adding: Adding,
) -> None:
    policies = parse_policies(
        "resources=application{env:dev};actions=*\n\nresources=piped;actions=list"
    )
    await cases.roles.add("Dev", policies, by=admin)
    await adding.tells(found(), found("apps/prod", name="prod", labels={"env": "prod"}))
    dora = replace(adding, client=someone(User(admin.project, "dora", ("Dev",))))
    page = await dora.page()
    assert "apps/cart" in page
    assert "apps/prod" not in page
    assert (await dora.send()).status_code == 303
    answer = await dora.send(form="by-hand", name="x", path="elsewhere")
    assert "Your roles do not allow this" in answer.text
    assert len(await adding.registered()) == 1


async def test_a_form_of_another_session_adds_nothing(adding: Adding) -> None:
    await adding.tells(found())
    answer = await adding.client.post(PAGE, data={**adding.form, "csrf": "made up"})
    assert answer.status_code == 403
    assert await adding.registered() == []


async def test_a_long_list_is_cut_and_searched(adding: Adding) -> None:
    await adding.tells(*(found(f"apps/a{number}", name=f"a{number}") for number in range(120)))
    page = await adding.page()
    assert page.count('data-testid="found-row"') == 50
    assert "70 more are not shown" in page
    page = await adding.page("?q=a11")
    assert page.count('data-testid="found-row"') == 11
    assert "Nothing found matches" in await adding.page("?q=zzz")


async def test_by_hand_follows_the_chosen_piped(
    adding: Adding,
    cases: UseCases,
    other_piped: PipedCaller,
) -> None:
    await adding.tells()
    page = await adding.page()
    assert f'name="piped" value="{other_piped.piped}"' not in page
    page = await adding.page(f"?piped={other_piped.piped}")
    assert "Piped prod has not told of any repository." in page
    repository = common.ApplicationGitRepository(id="second", remote="r", branch="main")
    meta = ReportPipedMetaRequest(version="v1", repositories=[repository], config="{}")
    await cases.pipeds.meta_reported(meta, by=other_piped)
    page = await adding.page(f"?piped={other_piped.piped}")
    assert f'name="piped" value="{other_piped.piped}"' in page
    assert "<option>second</option>" in page


async def test_what_a_file_says_is_never_markup(adding: Adding) -> None:
    bad = "<script>alert(1)</script>"
    await adding.tells(found(f"apps/{bad}", name=bad, labels={bad: bad}))
    assert "<script>alert" not in await adding.page()


async def test_a_project_without_pipeds_says_so(browser_of_admin: httpx2.AsyncClient) -> None:
    page = (await browser_of_admin.get(PAGE)).text
    assert "No piped looks for applications" in page
    assert 'class="btn primary" href="/settings/piped"' in page
    assert 'data-testid="by-hand"' not in page
