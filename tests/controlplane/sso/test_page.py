# SPDX-License-Identifier: Apache-2.0
"""The sign-in page: the methods of a project, and switching between projects."""

from collections.abc import Callable
from html import escape
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.proto.model.project_pb2 import Project

Fixture = Callable[..., Any]
SSO, PASSWORD = 'action="/auth/login"', 'action="/auth/login/static"'


async def test_a_project_shows_the_button_of_its_provider(
    configure_sso: Fixture, oidc_config: Fixture, github_config: Fixture, browser: Any
) -> None:
    plain = (await browser.get("/login?project=shop")).text
    assert SSO not in plain
    assert PASSWORD in plain
    await configure_sso(oidc_config())
    assert "Sign in with 127.0.0.1" in (await browser.get("/login?project=shop")).text
    await configure_sso(github_config())
    both = (await browser.get("/login?project=shop")).text
    assert "Sign in with GitHub" in both
    assert PASSWORD in both


async def test_a_project_with_a_disabled_static_admin_shows_no_password_form(
    configure_sso: Fixture, oidc_config: Fixture, browser: Any, cases: UseCases, admin: User
) -> None:
    await configure_sso(oidc_config())
    await cases.projects.disable_static_admin(by=admin)
    page = (await browser.get("/login?project=shop")).text
    assert SSO in page
    assert PASSWORD not in page
    assert 'href="/login?switch=1"' in page


async def test_without_a_project_the_page_offers_single_sign_on(browser: Any) -> None:
    page = (await browser.get("/login")).text
    assert 'formaction="/auth/login" formnovalidate>Use single sign-on' in page


async def test_an_unknown_project_looks_like_one_without_single_sign_on(browser: Any) -> None:
    unknown = await browser.get("/login?project=nowhere")
    known = await browser.get("/login?project=shop")
    assert unknown.text.replace("nowhere", "shop") == known.text


async def test_an_invalid_sso_configuration_leaves_the_password_form(
    configure_sso: Fixture, browser: Any
) -> None:
    await configure_sso(shared_sso_name="lost")
    page = (await browser.get("/login?project=shop")).text
    assert SSO not in page
    assert PASSWORD in page


async def test_a_user_switches_to_another_project(
    browser: Any, static_admin: StaticAdmin, cases: UseCases
) -> None:
    form = {"project": "shop", "username": static_admin.username, "password": static_admin.password}
    await browser.post("/auth/login/static", data=form)
    other = await cases.projects.add("depot")
    # A page of another project links to its sign-in page.
    page = (await browser.get("/applications?project=depot")).text
    assert 'href="/login?project=depot&amp;return=%2Fapplications"' in page
    page = await browser.get("/login?project=depot&return=/deployments")
    assert page.status_code == 200
    assert "Sign in to <bdi>depot</bdi>" in page.text
    form = {"project": "depot", "username": other.username, "password": other.password}
    await browser.post("/auth/login/static", data=form)
    assert ">depot</a>" in (await browser.get("/applications")).text
    # Both are offered as recent projects.
    choice = (await browser.get("/login?switch=1")).text
    assert 'href="/login?project=shop&amp;return="' in choice
    assert 'href="/login?project=depot&amp;return="' in choice
    answer = await browser.get("/login?project=depot")
    assert answer.headers["location"] == "/overview"


@pytest.mark.parametrize("name", ["a&b", "größe", 'q"uo+te', "a b,c"])
async def test_a_project_with_any_name_is_a_recent_project(
    browser: Any, stores: Stores, name: str, static_admin: StaticAdmin
) -> None:
    user = (await stores.projects.get("shop")).static_admin
    await stores.projects.add(Project(id=name, static_admin=user))
    form = {"project": name, "username": static_admin.username, "password": static_admin.password}
    answer = await browser.post("/auth/login/static", data=form)
    assert answer.status_code == 302
    shown = escape(name).replace("&quot;", "&#34;")
    assert f">{shown}</a>" in (await browser.get("/login?switch=1")).text
