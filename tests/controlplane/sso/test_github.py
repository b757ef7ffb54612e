# SPDX-License-Identifier: Apache-2.0
"""Sign-in with GitHub: roles follow the teams of a person."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipecd.controlplane.auth.sso.github import base_urls
from pipecd.controlplane.auth.subject import User
from pipecd.proto.model import project_pb2 as pb

Way = Callable[..., Any]
SignedIn = Callable[[Any], Awaitable[User]]
Refusal = Callable[[Any], str]

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
        pytest.param(["org/legacy"], ("Editor",), id="a team of the old configuration"),
        pytest.param([f"org/t{n}" for n in range(250)] + ["org/ops"], ("Admin",), id="many teams"),
    ],
)
async def test_somebody_comes_in_with_the_roles_of(
    *,
    github: Any,
    trust: Way,
    by_github: Way,
    through_github: Way,
    signed_in: SignedIn,
    teams: list[str],
    roles: tuple[str, ...],
) -> None:
    await trust(
        by_github(),
        user_groups=GROUPS,
        rbac_roles=[CHEF],
        rbac=pb.ProjectRBACConfig(editor="org/legacy"),
    )
    github.teams = teams
    answer = await through_github()
    assert answer.headers["location"] == "/"
    assert await signed_in(answer) == User("shop", "octo", roles, "https://avatars.example/octo")


@pytest.mark.parametrize(
    "teams",
    [
        pytest.param([], id="no team"),
        pytest.param(["org/OPS"], id="a team in other letters"),
        pytest.param(["org/gone"], id="a team whose role was deleted"),
    ],
)
async def test_without_a_role_somebody_stays_outside_unless_strays_may_look(
    *,
    github: Any,
    trust: Way,
    by_github: Way,
    through_github: Way,
    signed_in: SignedIn,
    refusal: Refusal,
    teams: list[str],
) -> None:
    await trust(by_github(), user_groups=GROUPS)
    github.teams = teams
    told = refusal(await through_github())
    assert told == (
        "Unable to find user: none of your teams has a role here, "
        "ask an administrator of project shop"
    )
    await trust(allow_stray_as_viewer=True)
    assert (await signed_in(await through_github())).roles == ("Viewer",)


async def test_what_github_is_asked(github: Any, trust: Way, by_github: Way, leave: Way) -> None:
    await trust(by_github(), user_groups=GROUPS)
    url, asked = await leave()
    assert url.startswith(f"{github.url}/login/oauth/authorize?access_type=online&client_id=")
    assert bytes.fromhex(asked.pop("state"))
    assert asked == {
        "access_type": "online",
        "client_id": "client",
        "prompt": "consent",
        "redirect_uri": "https://pipecd.example/auth/callback?project=shop",
        "response_type": "code",
        "scope": "read:org",
    }


async def test_a_project_without_groups_lets_nobody_in(
    trust: Way, by_github: Way, through_github: Way, refusal: Refusal
) -> None:
    await trust(by_github())
    assert refusal(await through_github()) == "Missing User Group configuration"


async def test_a_code_that_github_does_not_know_is_refused(
    github: Any, trust: Way, by_github: Way, through_github: Way, refusal: Refusal
) -> None:
    await trust(by_github(), user_groups=GROUPS)
    told = refusal(await through_github(code="bad"))
    assert told.endswith("the provider refused the sign-in: bad_verification_code")
    assert github.asked == ["https://pipecd.example/auth/callback?project=shop"]


async def test_an_answer_without_a_name_is_refused(
    github: Any, trust: Way, by_github: Way, through_github: Way, refusal: Refusal
) -> None:
    await trust(by_github(), user_groups=GROUPS)
    github.user = {"login": None}
    assert refusal(await through_github()).endswith("GitHub did not return the user's login")


@pytest.mark.parametrize(
    ("base_url", "site", "api"),
    [
        pytest.param("", "https://github.com", "https://api.github.com/", id="nothing"),
        pytest.param(
            "https://ghe.example", "https://ghe.example", "https://ghe.example/api/v3/", id="a host"
        ),
        pytest.param(
            "https://ghe.example:8443/api/v3",
            "https://ghe.example:8443",
            "https://ghe.example:8443/api/v3/",
            id="the address of the API",
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
            id="a host of the API",
        ),
    ],
)
def test_where_github_is_found_with(base_url: str, site: str, api: str) -> None:
    assert base_urls(base_url) == (site, api)
