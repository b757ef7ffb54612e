# SPDX-License-Identifier: Apache-2.0
"""Sign-in with GitHub or GitHub Enterprise; roles follow from the user's teams."""

from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.sso.provider import (
    AuthRequest,
    AuthResponse,
    ProviderClient,
    SsoIdentity,
    as_list,
    as_object,
    build_authorization_url,
    is_http_url,
    stray_roles,
    wrong_issuer,
)
from pipecd.model.errors import Unauthenticated, Unavailable
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.wire.outbound import OutboundPolicy

_SITE, _API = "https://github.com", "https://api.github.com/"
_API_HINT = "check the base URL: what answers does not seem to be the API of GitHub"
_PAGE_SIZE, _MAX_PAGES = 100, 10


class GitHubProvider:
    """The provider of projects with `provider: GITHUB`."""

    label = "GitHub"

    def __init__(self, config: ProjectSSOConfig.GitHub, policy: OutboundPolicy) -> None:
        self._config, self._policy = config, policy
        self._site, self._api = base_urls(config.base_url)

    @staticmethod
    def config_error(config: ProjectSSOConfig.GitHub) -> str | None:
        if not (config.client_id and config.client_secret):
            return "github needs a client id and a client secret"
        if config.base_url and not is_http_url(config.base_url):
            return "the base URL of github is not a URL"
        return None

    async def authorization_url(self, request: AuthRequest) -> str:
        return build_authorization_url(
            f"{self._site}/login/oauth/authorize",
            request,
            client_id=self._config.client_id,
            redirect_uri=_redirect_uri(request),
            scope="read:org",
            state=request.secrets.state,
        )

    async def identify(self, response: AuthResponse, request: AuthRequest) -> SsoIdentity:
        # GitHub sends no issuer yet; that of another provider shows where the code comes from.
        issuer = response.issuer
        if issuer and issuer != self._site and not issuer.startswith(f"{self._site}/"):
            raise wrong_issuer()
        form = {
            "client_id": self._config.client_id,
            "client_secret": self._config.client_secret,
            "code": response.code,
            "code_verifier": request.secrets.code_verifier,
            "grant_type": "authorization_code",
            "redirect_uri": _redirect_uri(request),
        }
        async with ProviderClient.connect(self._config.proxy_url, self._policy) as client:
            tokens = await client.exchange(f"{self._site}/login/oauth/access_token", form)
            token: str = tokens["access_token"]
            user = as_object(await client.get(f"{self._api}user", token))
            teams = await self._teams(client, token)
        name, avatar = user.get("login"), user.get("avatar_url")
        if not isinstance(name, str) or not name:
            raise Unauthenticated("GitHub did not return the user's login", hint=_API_HINT)
        roles = team_roles(teams, request.project)
        return SsoIdentity(name, roles, avatar if isinstance(avatar, str) else "")

    async def _teams(self, client: ProviderClient, token: str) -> list[str]:
        teams: list[str] = []
        for page in range(1, _MAX_PAGES + 1):
            url = f"{self._api}user/teams?per_page={_PAGE_SIZE}&page={page}"
            listed = as_list(await client.get(url, token))
            if listed is None:
                raise Unavailable("GitHub did not answer with a list of teams", hint=_API_HINT)
            try:
                teams += [f"{team['organization']['login']}/{team['slug']}" for team in listed]
            except (KeyError, TypeError) as e:
                raise Unavailable(
                    "GitHub answered with a team that has no name", hint=_API_HINT
                ) from e
            if len(listed) < _PAGE_SIZE:
                break
        return teams


def base_urls(base_url: str) -> tuple[str, str]:
    """The URLs of the site and of its REST API, the latter with a slash at its end."""
    if not base_url:
        return _SITE, _API
    parts = urlsplit(base_url)
    path = parts.path if parts.path.endswith("/") else f"{parts.path}/"
    # A host that serves only the API has it at its root.
    is_api_host = parts.netloc.startswith("api.") or ".api." in parts.netloc
    if not (path.endswith("/api/v3/") or is_api_host):
        path += "api/v3/"
    site = f"{parts.scheme}://{parts.netloc}"
    return site, f"{site}{path}"


def team_roles(teams: Iterable[str], project: Project) -> tuple[str, ...]:
    """The roles the project gives to these teams, each once, in the order of the teams."""
    by_group = {group.sso_group: group.role for group in rbac.user_groups_of(project)}
    assigned = dict.fromkeys(by_group[team] for team in teams if team in by_group)
    existing = {role.name for role in rbac.roles_named(rbac.roles_of(project), assigned)}
    roles = tuple(name for name in assigned if name in existing)
    return roles or stray_roles(project, "none of your teams has a role here")


def _redirect_uri(request: AuthRequest) -> str:
    return f"{request.callback}?project={quote(request.project.id, safe='')}"
