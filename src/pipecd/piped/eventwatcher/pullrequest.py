# SPDX-License-Identifier: Apache-2.0
"""Opens pull requests at hosts that are known, or says where a person can open one."""

from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import quote, urlsplit

import httpx2
import structlog

from pipecd.git.remote import is_http, local_path, parse_remote
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.model.giturl import page_url

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_AT_MOST = 15.0
_SHOWN = 200


class Host(Enum):
    """Kinds of hosts, told apart by their names."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    BITBUCKET = "bitbucket"
    OTHER = ""


_NAMES = {
    "github": Host.GITHUB,
    "gitlab": Host.GITLAB,
    "gitea": Host.GITEA,
    "forgejo": Host.GITEA,
    "codeberg": Host.GITEA,
    "bitbucket": Host.BITBUCKET,
}


@dataclass(frozen=True)
class Wanted:
    """A pull request to open."""

    remote: str
    branch: str
    base: str
    title: str
    body: str = ""


@dataclass(frozen=True)
class Call:
    """One request to the API of a host, and the field of its answer that holds the page."""

    url: str
    headers: dict[str, str] = field(repr=False)
    json: dict[str, str]
    page: str


def host_of(remote: str) -> Host:
    """What kind of host a repository is at."""
    if local_path(remote) is not None:
        return Host.OTHER
    name = (urlsplit(page_url(remote)).hostname or "").lower()
    return next((host for part, host in _NAMES.items() if part in name), Host.OTHER)


def page_to_open(wanted: Wanted) -> str:
    """The page on which a person can open the pull request; nothing for a repository on disk."""
    if local_path(wanted.remote) is not None:
        return ""
    page, branch, base = page_url(wanted.remote), quote(wanted.branch), quote(wanted.base)
    match host_of(wanted.remote):
        case Host.GITLAB:
            query = f"merge_request[source_branch]={branch}&merge_request[target_branch]={base}"
            return f"{page}/-/merge_requests/new?{query}"
        case Host.BITBUCKET:
            return f"{page}/pull-requests/new?source={branch}&dest={base}"
        case _:
            return f"{page}/compare/{base}...{branch}"


def call_of(wanted: Wanted, token: str) -> Call | None:
    """The request that opens it; None where the host, or the right to do so, is not known."""
    if not is_http(wanted.remote):
        return None
    token = token or parse_remote(wanted.remote).password
    page = urlsplit(page_url(wanted.remote))
    site, path = f"{page.scheme}://{page.netloc}", page.path.strip("/")
    match host_of(wanted.remote):
        case _ if not token:
            return None
        case Host.GITLAB:
            return Call(
                f"{site}/api/v4/projects/{quote(path, safe='')}/merge_requests",
                {"Authorization": f"Bearer {token}"},
                {
                    "source_branch": wanted.branch,
                    "target_branch": wanted.base,
                    "title": wanted.title,
                    "description": wanted.body,
                },
                "web_url",
            )
        case Host.GITHUB | Host.GITEA as host:
            api = f"{site}/api/v3" if host is Host.GITHUB else f"{site}/api/v1"
            if page.hostname == "github.com":
                api = "https://api.github.com"
            return Call(
                f"{api}/repos/{path}/pulls",
                {"Authorization": f"token {token}"},
                {
                    "head": wanted.branch,
                    "base": wanted.base,
                    "title": wanted.title,
                    "body": wanted.body,
                },
                "html_url",
            )
        case _:
            return None


async def open_request(call: Call) -> str:
    """Makes the request and returns the page of the pull request."""
    try:
        async with httpx2.AsyncClient(timeout=_AT_MOST) as client:
            answer = await client.post(call.url, json=call.json, headers=call.headers)
    except httpx2.HTTPError as e:
        raise Unavailable(f"no pull request could be opened: {e or type(e).__name__}") from e
    if answer.status_code // 100 != 2:
        said = " ".join(answer.text.split())[:_SHOWN]
        raise Unavailable(f"no pull request could be opened: {answer.status_code} {said}")
    try:
        return str(answer.json()[call.page])
    except (ValueError, KeyError, TypeError) as e:
        raise Unavailable("a pull request was asked for, and the answer cannot be read") from e


async def asked_for(wanted: Wanted, token: str) -> str:
    """Opens a pull request if that can be done; says where it is, or where a person opens it."""
    page, call = page_to_open(wanted), call_of(wanted, token)
    if call is not None:
        try:
            return f"pull request {await open_request(call)}"
        except PipecdError as e:
            log.warning("pull request not opened", branch=wanted.branch, error=str(e))
            return f"{e}; open it at {page}"
    return f"open a pull request at {page}" if page else ""
