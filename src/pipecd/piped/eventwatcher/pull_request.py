# SPDX-License-Identifier: Apache-2.0
"""Opens pull requests on known Git hosts, or links to the page where a user can open one."""

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import quote, urlsplit

import httpx2
import structlog

from pipecd.git.remote import is_http, local_path, parse_remote
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.model.giturl import page_url

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_TIMEOUT = 15.0
_MAX_QUOTED_RESPONSE = 200


class GitHost(Enum):
    """Kinds of Git hosts, recognised by their host names."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    BITBUCKET = "bitbucket"
    OTHER = ""


_NAMES = {
    "github": GitHost.GITHUB,
    "gitlab": GitHost.GITLAB,
    "gitea": GitHost.GITEA,
    "forgejo": GitHost.GITEA,
    "codeberg": GitHost.GITEA,
    "bitbucket": GitHost.BITBUCKET,
}


@dataclass(frozen=True)
class PullRequest:
    """A pull request to open."""

    remote: str
    branch: str
    base: str
    title: str
    body: str = ""


@dataclass(frozen=True)
class ApiCall:
    """One request to the API of a host, and the response field with the URL of the page."""

    url: str
    headers: dict[str, str] = field(repr=False)
    json: dict[str, str]
    page: str


def git_host(remote: str) -> GitHost:
    """The kind of host of a remote."""
    if local_path(remote) is not None:
        return GitHost.OTHER
    name = (urlsplit(page_url(remote)).hostname or "").lower()
    return next((host for part, host in _NAMES.items() if part in name), GitHost.OTHER)


def compare_page(request: PullRequest) -> str:
    """The page on which a user can open the pull request; empty for a local repository."""
    if local_path(request.remote) is not None:
        return ""
    page, branch, base = page_url(request.remote), quote(request.branch), quote(request.base)
    match git_host(request.remote):
        case GitHost.GITLAB:
            query = f"merge_request[source_branch]={branch}&merge_request[target_branch]={base}"
            return f"{page}/-/merge_requests/new?{query}"
        case GitHost.BITBUCKET:
            return f"{page}/pull-requests/new?source={branch}&dest={base}"
        case _:
            return f"{page}/compare/{base}...{branch}"


def api_call(request: PullRequest, token: str) -> ApiCall | None:
    """The API request that opens it; None if the host is unknown or there is no token."""
    if not is_http(request.remote):
        return None
    token = token or parse_remote(request.remote).password
    page = urlsplit(page_url(request.remote))
    site, path = f"{page.scheme}://{page.netloc}", page.path.strip("/")
    match git_host(request.remote):
        case _ if not token:
            return None
        case GitHost.GITLAB:
            return ApiCall(
                f"{site}/api/v4/projects/{quote(path, safe='')}/merge_requests",
                {"Authorization": f"Bearer {token}"},
                {
                    "source_branch": request.branch,
                    "target_branch": request.base,
                    "title": request.title,
                    "description": request.body,
                },
                "web_url",
            )
        case GitHost.GITHUB | GitHost.GITEA as host:
            api = f"{site}/api/v3" if host is GitHost.GITHUB else f"{site}/api/v1"
            if page.hostname == "github.com":
                api = "https://api.github.com"
            return ApiCall(
                f"{api}/repos/{path}/pulls",
                {"Authorization": f"token {token}"},
                {
                    "head": request.branch,
                    "base": request.base,
                    "title": request.title,
                    "body": request.body,
                },
                "html_url",
            )
        case _:
            return None


async def send_call(call: ApiCall) -> str:
    """Sends the request and returns the page of the pull request."""
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT) as client:
            response = await client.post(call.url, json=call.json, headers=call.headers)
    except httpx2.HTTPError as e:
        raise Unavailable(f"no pull request could be opened: {e or type(e).__name__}") from e
    if response.status_code // 100 != 2:
        quoted = " ".join(response.text.split())[:_MAX_QUOTED_RESPONSE]
        raise Unavailable(f"no pull request could be opened: {response.status_code} {quoted}")
    try:
        return str(response.json()[call.page])
    except (ValueError, KeyError, TypeError) as e:
        raise Unavailable("the response to the pull request cannot be parsed") from e


async def open_pull_request(request: PullRequest, token: str) -> str:
    """Opens a pull request if possible; returns a text with its URL or where to open it."""
    page, call = compare_page(request), api_call(request, token)
    if call is not None:
        try:
            return f"pull request {await send_call(call)}"
        except PipecdError as e:
            log.warning("pull request not opened", branch=request.branch, error=str(e))
            return f"{e}; open it at {page}"
    return f"open a pull request at {page}" if page else ""
