# SPDX-License-Identifier: Apache-2.0
"""The settings of the project of the pictures: roles, groups, users, keys, a webhook."""

from collections.abc import Callable, Mapping

from playwright.async_api import BrowserContext

from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.wire.credentials import SESSION_COOKIE
from servers.pictured_applications import DAY, HOUR, MINUTE


async def fill_settings(
    cases: UseCases, admin: User, at: Callable[[float], int], piped: PipedCaller
) -> None:
    """Fills them; `at` sets the clock to so many seconds before the present."""
    at(60 * DAY)
    oidc = ProjectSSOConfig.Oidc(
        client_id="pipecd", client_secret="secret", issuer="https://idp.example"
    )
    sso = ProjectSSOConfig(provider=ProjectSSOConfig.OIDC, oidc=oidc)
    await cases.projects.set_sso(sso, by=admin)
    policies = parse_policies("resources=application{env:staging},deployment;actions=get,list")
    await cases.roles.add("watchers", policies, by=admin)
    for group, role in (("shop/platform", "Admin"), ("shop/night", "watchers")):
        await cases.roles.add_group(group, role, by=admin)
    await cases.webhooks.rotate(by=admin)
    keys = ((44, "ci", APIKey.READ_WRITE), (21, "dashboard", APIKey.READ_ONLY))
    for days, name, role in (*keys, (12, "old-ci", APIKey.READ_WRITE)):
        at(days * DAY)
        key = await cases.api_keys.generate(name, role, by=admin)
        if name == "ci":
            at(4 * MINUTE)
            await cases.api_keys.verify(key)
    for key in await cases.api_keys.list(by=admin):
        if key.name == "old-ci":
            await cases.api_keys.disable(key.id, by=admin)
    at(8 * DAY)
    await cases.pipeds.add_key(piped.piped, by=admin)
    roles: Mapping[str, tuple[str, ...]] = {
        "kenji": ("Editor",),
        "maria": ("Admin",),
        "vera": ("Viewer",),
        "li.wei": ("Viewer", "watchers"),
    }
    for number, (name, of_user) in enumerate(roles.items()):
        for session in range(1 + number % 2):
            at((3 + 17 * number + 2 * session) * HOUR)
            await cases.sessions.begin(User(admin.project, name, of_user))


async def sign_in(browser: BrowserContext, console_url: str, cases: UseCases, user: User) -> None:
    """Gives the browser a session that the page of users lists."""
    token = await cases.sessions.begin(user)
    await browser.add_cookies(
        [{"name": SESSION_COOKIE, "value": token, "url": console_url, "sameSite": "Strict"}]
    )
