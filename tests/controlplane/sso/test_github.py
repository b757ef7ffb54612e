# SPDX-License-Identifier: Apache-2.0
"""Sign-in with GitHub: roles follow from the teams of the user."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipecd.controlplane.auth.sso.github import base_urls
from pipecd.controlplane.auth.subject import User
from pipecd.proto.model import project_pb2 as pb

Fixture = Callable[..., Any]
SignedIn = Callable[[Any], Awaitable[User]]
ErrorMessage = Callable[[Any], str]

GROUPS = [
    pb.ProjectUserGroup(sso_group="org/ops", role="Admin"),
    pb.ProjectUserGroup(sso_group="org/devs", role="chef"),
    pb.ProjectUserGroup(sso_group="org/gone", role="a role that was deleted"),
]
CHEF = pb.ProjectRBACRole(
    name="chef",
    policies=[
        pb.ProjectRBACPolicy(
            resources=[pb.ProjectRBACResource()], actions=[pb.ProjectRBACPolicy.GET]
        )
    ],
)


@pytest.mark.parametrize(
    ("teams", "roles"),
    [
        pytest.param(["org/devs", "org/ops"], ("chef", "Admin"), id="several teams, in order"),
        pytest.param(["other/x", "org/ops", "org/ops"], ("Admin",), id="a team among others"),
        pytest.param(["org/legacy"], ("Editor",), id="a team of the legacy configuration"),
        pytest.param([f"org/t{n}" for n in range(250)] + ["org/ops"], ("Admin",), id="many teams"),
    ],
)
async def test_a_user_gets_the_roles_of(
    *,
    github: Any,
    configure_sso: Fixture,
    github_config: Fixture,
    sign_in_with_github: Fixture,
    signed_in: SignedIn,
    teams: list[str],
    roles: tuple[str, ...],
) -> None:
    await configure_sso(
        github_config(),
        user_groups=GROUPS,
        rbac_roles=[CHEF],
        rbac=pb.ProjectRBACConfig(editor="org/legacy"),
    )
    github.teams = teams
    answer = await sign_in_with_github()
    assert answer.headers["location"] == "/"
    assert await signed_in(answer) == User("shop", "octo", roles, "https://avatars.example/octo")


@pytest.mark.parametrize(
    "teams",
    [
        pytest.param([], id="no team"),
        pytest.param(["org/OPS"], id="a team in another case"),
        pytest.param(["org/gone"], id="a team whose role was deleted"),
    ],
)
async def test_a_user_without_a_role_is_rejected_unless_strays_are_viewers(
    *,
    github: Any,
    configure_sso: Fixture,
    github_config: Fixture,
    sign_in_with_github: Fixture,
    signed_in: SignedIn,
    error_message: ErrorMessage,
    teams: list[str],
) -> None:
    await configure_sso(github_config(), user_groups=GROUPS)
    github.teams = teams
    message = error_message(await sign_in_with_github())
    assert message == (
        "Unable to find user: none of your teams has a role here, "
        "ask an administrator of project shop"
    )
    await configure_sso(allow_stray_as_viewer=True)
    assert (await signed_in(await sign_in_with_github())).roles == ("Viewer",)


async def test_the_authorization_url_of_github(
    github: Any, configure_sso: Fixture, github_config: Fixture, begin_sign_in: Fixture
) -> None:
    await configure_sso(github_config(), user_groups=GROUPS)
    url, query = await begin_sign_in()
    assert url.startswith(f"{github.url}/login/oauth/authorize?access_type=online&")
    assert query.pop("state")
    assert len(query.pop("code_challenge")) == 43
    assert query == {
        "access_type": "online",
        "code_challenge_method": "S256",
        "client_id": "client",
        "prompt": "consent",
        "redirect_uri": "https://pipecd.example/auth/callback?project=shop",
        "response_type": "code",
        "scope": "read:org",
    }


async def test_a_project_without_user_groups_rejects_every_user(
    configure_sso: Fixture,
    github_config: Fixture,
    sign_in_with_github: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(github_config())
    assert error_message(await sign_in_with_github()) == "Missing User Group configuration"


async def test_an_unknown_code_is_rejected(
    github: Any,
    configure_sso: Fixture,
    github_config: Fixture,
    sign_in_with_github: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(github_config(), user_groups=GROUPS)
    message = error_message(await sign_in_with_github(code="bad"))
    assert message.endswith("the provider refused the sign-in: bad_verification_code")
    assert github.requests == ["https://pipecd.example/auth/callback?project=shop"]


async def test_a_response_without_a_login_is_rejected(
    github: Any,
    configure_sso: Fixture,
    github_config: Fixture,
    sign_in_with_github: Fixture,
    error_message: ErrorMessage,
) -> None:
    await configure_sso(github_config(), user_groups=GROUPS)
    github.user = {"login": None}
    assert error_message(await sign_in_with_github()).endswith(
        "GitHub did not return the user's login"
    )


@pytest.mark.parametrize(
    ("base_url", "site", "api"),
    [
        pytest.param("", "https://github.com", "https://api.github.com/", id="empty"),
        pytest.param(
            "https://ghe.example", "https://ghe.example", "https://ghe.example/api/v3/", id="a host"
        ),
        pytest.param(
            "https://ghe.example:8443/api/v3",
            "https://ghe.example:8443",
            "https://ghe.example:8443/api/v3/",
            id="the URL of the API",
        ),
        pytest.param(
            "https://ghe.example/git/",
            "https://ghe.example",
            "https://ghe.example/git/api/v3/",
            id="a path",
        ),
        pytest.param(
            "https://api.ghe.example",
            "https://api.ghe.example",
            "https://api.ghe.example/",
            id="an API host",
        ),
    ],
)
def test_the_urls_of_github_with_a_base_url(base_url: str, site: str, api: str) -> None:
    assert base_urls(base_url) == (site, api)
