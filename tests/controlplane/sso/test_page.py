# SPDX-License-Identifier: Apache-2.0
"""The sign-in page offers what the project has, and the way from one project to another."""

from collections.abc import Callable
from html import escape
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.proto.model.project_pb2 import Project

Way = Callable[..., Any]
SSO, PASSWORD = 'action="/auth/login"', 'action="/auth/login/static"'


async def test_a_project_shows_the_button_of_its_provider(
    trust: Way, by_oidc: Way, by_github: Way, browser: Any
) -> None:
    plain = (await browser.get("/login?project=shop")).text
    assert SSO not in plain
    assert PASSWORD in plain
    await trust(by_oidc())
    assert "Sign in with 127.0.0.1" in (await browser.get("/login?project=shop")).text
    await trust(by_github())
    both = (await browser.get("/login?project=shop")).text
    assert "Sign in with GitHub" in both
    assert PASSWORD in both


async def test_a_project_without_passwords_shows_no_form_for_them(
    trust: Way, by_oidc: Way, browser: Any, cases: UseCases, admin: User
) -> None:
    await trust(by_oidc())
    await cases.projects.disable_static_admin(by=admin)
    page = (await browser.get("/login?project=shop")).text
    assert SSO in page
    assert PASSWORD not in page
    assert 'href="/login?switch=1"' in page


async def test_without_a_project_single_sign_on_is_one_click_away(browser: Any) -> None:
    page = (await browser.get("/login")).text
    assert 'formaction="/auth/login" formnovalidate>Use single sign-on' in page


async def test_an_unknown_project_is_told_at_once(browser: Any) -> None:
    answer = await browser.get("/login?project=nowhere")
    assert answer.status_code == 200
    assert "Unable to find project nowhere." in answer.text
    assert 'value="nowhere"' in answer.text


async def test_a_broken_sign_in_leaves_the_password(trust: Way, browser: Any) -> None:
    await trust(shared_sso_name="lost")
    page = (await browser.get("/login?project=shop")).text
    assert SSO not in page
    assert PASSWORD in page


async def test_somebody_goes_from_one_project_to_another(
    browser: Any, static_admin: StaticAdmin, cases: UseCases
) -> None:
    form = {"project": "shop", "username": static_admin.username, "password": static_admin.password}
    await browser.post("/auth/login/static", data=form)
    other = await cases.projects.add("depot")
    # Links into another project say so, and lead to its sign-in and back.
    page = (await browser.get("/applications?project=depot")).text
    assert 'href="/login?project=depot&amp;return=%2Fapplications"' in page
    page = await browser.get("/login?project=depot&return=/deployments")
    assert page.status_code == 200
    assert "Sign in to depot" in page.text
    form = {"project": "depot", "username": other.username, "password": other.password}
    await browser.post("/auth/login/static", data=form)
    assert ">depot</a>" in (await browser.get("/applications")).text
    # Both are remembered, the other one is offered.
    choice = (await browser.get("/login?switch=1")).text
    assert 'href="/login?project=shop&amp;return="' in choice
    assert 'href="/login?project=depot&amp;return="' in choice
    asked_again = await browser.get("/login?project=depot")
    assert asked_again.headers["location"] == "/applications"


@pytest.mark.parametrize("name", ["a&b", "größe", 'q"uo+te', "a b,c"])
async def test_any_name_of_a_project_is_remembered(
    browser: Any, stores: Stores, name: str, static_admin: StaticAdmin
) -> None:
    user = (await stores.projects.get("shop")).static_admin
    await stores.projects.add(Project(id=name, static_admin=user))
    form = {"project": name, "username": static_admin.username, "password": static_admin.password}
    answer = await browser.post("/auth/login/static", data=form)
    assert answer.status_code == 302
    shown = escape(name).replace("&quot;", "&#34;")
    assert f">{shown}</a>" in (await browser.get("/login?switch=1")).text
