# SPDX-License-Identifier: Apache-2.0
"""Sign-in with GitHub or GitHub Enterprise; roles follow the teams."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlsplit

from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.sso.conversation import (
    Conversation,
    as_list,
    as_object,
    conversation,
)
from pipecd.controlplane.auth.sso.provider import (
    Identity,
    Trip,
    consent_url,
    is_web_address,
    stray,
)
from pipecd.model.errors import Unauthenticated, Unavailable
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig

_SITE, _API = "https://github.com", "https://api.github.com/"
_PAGE, _MOST_PAGES = 100, 10


class GitHub:
    """The provider that a project names with `GITHUB`."""

    label = "GitHub"

    def __init__(self, config: ProjectSSOConfig.GitHub) -> None:
        self._config = config
        self._site, self._api = addresses(config.base_url)

    @staticmethod
    def fault_of(config: ProjectSSOConfig.GitHub) -> str | None:
        if not (config.client_id and config.client_secret):
            return "github needs a client id and a client secret"
        if config.base_url and not is_web_address(config.base_url):
            return "the base URL of github is not an address"
        return None

    async def way_out(self, trip: Trip) -> str:
        return consent_url(
            f"{self._site}/login/oauth/authorize",
            client_id=self._config.client_id,
            redirect_uri=_callback(trip),
            scope="read:org",
            state=trip.state,
        )

    async def identify(self, code: str, trip: Trip) -> Identity:
        form = {
            "client_id": self._config.client_id,
            "client_secret": self._config.client_secret,
            "code": code,
            "grant_type": "authorization_code",
            "redirect_uri": _callback(trip),
        }
        async with conversation(self._config.proxy_url) as talk:
            tokens = await talk.exchange(f"{self._site}/login/oauth/access_token", form)
            token: str = tokens["access_token"]
            user = as_object(await talk.get(f"{self._api}user", token))
            teams = await self._teams(talk, token)
        name, avatar = user.get("login"), user.get("avatar_url")
        if not isinstance(name, str) or not name:
            raise Unauthenticated("GitHub did not tell who signed in")
        roles = roles_of(teams, trip.project)
        return Identity(name, roles, avatar if isinstance(avatar, str) else "")

    async def _teams(self, talk: Conversation, token: str) -> list[str]:
        teams: list[str] = []
        for page in range(1, _MOST_PAGES + 1):
            url = f"{self._api}user/teams?per_page={_PAGE}&page={page}"
            found = as_list(await talk.get(url, token))
            if found is None:
                raise Unavailable("GitHub did not answer with a list of teams")
            teams += (_team_name(team) for team in found)
            if len(found) < _PAGE:
                break
        return teams


def addresses(base_url: str) -> tuple[str, str]:
    """Where people sign in and where programs ask, the latter with a slash at its end."""
    if not base_url:
        return _SITE, _API
    parts = urlsplit(base_url)
    path = parts.path if parts.path.endswith("/") else f"{parts.path}/"
    # Hosts of the API alone have it at their root.
    is_api_host = parts.netloc.startswith("api.") or ".api." in parts.netloc
    if not (path.endswith("/api/v3/") or is_api_host):
        path += "api/v3/"
    site = f"{parts.scheme}://{parts.netloc}"
    return site, f"{site}{path}"


def roles_of(teams: Iterable[str], project: Project) -> tuple[str, ...]:
    """The roles that the project gives to these teams, each once and in their order."""
    by_group = {group.sso_group: group.role for group in rbac.user_groups_of(project)}
    named = dict.fromkeys(by_group[team] for team in teams if team in by_group)
    known = {role.name for role in rbac.held(rbac.roles_of(project), named)}
    roles = tuple(name for name in named if name in known)
    return roles or stray(project, "none of your teams has a role here")


def _callback(trip: Trip) -> str:
    return f"{trip.callback}?project={quote(trip.project.id, safe='')}"


def _team_name(team: Any) -> str:
    try:
        return f"{team['organization']['login']}/{team['slug']}"
    except (KeyError, TypeError) as e:
        raise Unavailable("GitHub answered with a team that has no name") from e
