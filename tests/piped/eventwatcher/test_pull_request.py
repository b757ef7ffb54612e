# SPDX-License-Identifier: Apache-2.0
"""Pull requests are opened on known hosts; for others there is a link."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pipecd.model.errors import Unavailable
from pipecd.piped.eventwatcher.pull_request import (
    ApiCall,
    PullRequest,
    api_call,
    compare_page,
    open_pull_request,
    send_call,
)
from servers.web import Answer, Request, WebServer


def pull_request(remote: str) -> PullRequest:
    return PullRequest(remote, "new/image-1", "main", "title", "body")


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        pytest.param("https://github.com/org/shop.git", "https://github.com/org/shop/compare/main...new/image-1", id="GitHub"),
        pytest.param("git@github.com:org/shop.git", "https://github.com/org/shop/compare/main...new/image-1", id="GitHub over ssh"),
        pytest.param("https://gitlab.example.com/a/b/shop.git", "https://gitlab.example.com/a/b/shop/-/merge_requests/new?merge_request[source_branch]=new/image-1&merge_request[target_branch]=main", id="GitLab"),
        pytest.param("git@bitbucket.org:org/shop.git", "https://bitbucket.org/org/shop/pull-requests/new?source=new/image-1&dest=main", id="Bitbucket"),
        pytest.param("https://git.example.com/org/shop", "https://git.example.com/org/shop/compare/main...new/image-1", id="a host of another name"),
        pytest.param("https://user:secret@github.com/org/shop", "https://github.com/org/shop/compare/main...new/image-1", id="a password is not shown"),
        pytest.param("file:///srv/shop", "", id="a repository on disk has no page"),
    ],
)  # fmt: skip
def test_the_page_where_users_open_a_pull_request(remote: str, page: str) -> None:
    assert compare_page(pull_request(remote)) == page


FIELDS = {"title": "title", "body": "body", "head": "new/image-1", "base": "main"}


@pytest.mark.parametrize(
    ("remote", "token", "url"),
    [
        pytest.param("https://github.com/org/shop.git", "t", "https://api.github.com/repos/org/shop/pulls", id="GitHub"),
        pytest.param("https://github.example.com/org/shop", "t", "https://github.example.com/api/v3/repos/org/shop/pulls", id="GitHub of one's own"),
        pytest.param("https://user:t@codeberg.org/org/shop", "", "https://codeberg.org/api/v1/repos/org/shop/pulls", id="Forgejo, with the token in the address"),
        pytest.param("https://github.com/org/shop.git", "", None, id="without a token"),
        pytest.param("git@github.com:org/shop.git", "t", None, id="over ssh there is no token"),
        pytest.param("https://git.example.com/org/shop", "t", None, id="a host of another name"),
        pytest.param("https://bitbucket.org/org/shop", "t", None, id="Bitbucket"),
    ],
)  # fmt: skip
def test_how_piped_opens_a_pull_request(remote: str, token: str, url: str | None) -> None:
    call = api_call(pull_request(remote), token)
    assert (call and call.url) == url
    if call is not None:
        assert call == ApiCall(url or "", {"Authorization": "token t"}, FIELDS, "html_url")
        assert "Authorization" not in repr(call)


def test_how_piped_opens_a_merge_request_at_gitlab() -> None:
    call = api_call(pull_request("https://gitlab.com/a/b/shop.git"), "t")
    assert call == ApiCall(
        "https://gitlab.com/api/v4/projects/a%2Fb%2Fshop/merge_requests",
        {"Authorization": "Bearer t"},
        {
            "title": "title",
            "description": "body",
            "source_branch": "new/image-1",
            "target_branch": "main",
        },
        "web_url",
    )


class GitHost(WebServer):
    """A host that answers every request alike."""

    def __init__(self) -> None:
        self.says = Answer(201, b'{"html_url": "https://host/pull/1"}')
        self.requests: list[tuple[str, str, Any]] = []
        super().__init__()

    def answer(self, request: Request) -> Answer:
        self.requests.append((request.path, request.authorization, json.loads(request.body)))
        return self.says


@pytest.fixture
def host() -> Iterator[GitHost]:
    with closing(GitHost()) as server:
        yield server


async def test_a_pull_request_is_opened(host: GitHost) -> None:
    call = ApiCall(
        f"{host.address}/repos", {"Authorization": "token t"}, {"title": "x"}, "html_url"
    )
    assert await send_call(call) == "https://host/pull/1"
    assert host.requests == [("/repos", "token t", {"title": "x"})]


@pytest.mark.parametrize(
    ("code", "answer", "error"),
    [
        pytest.param(422, b'{"message": "no commits"}', '422 {"message": "no commits"}', id="a refusal"),
        pytest.param(201, b"<html>", "cannot be parsed", id="another page"),
        pytest.param(201, b"{}", "cannot be parsed", id="an answer without a page"),
    ],
)  # fmt: skip
async def test_a_refusal_of_the_host_is_reported(
    host: GitHost, code: int, answer: bytes, error: str
) -> None:
    host.says = Answer(code, answer)
    with pytest.raises(Unavailable, match=error):
        await send_call(ApiCall(host.address, {}, {}, "html_url"))


async def test_without_an_api_the_result_is_the_page_to_open(host: GitHost) -> None:
    remote = "git@github.com:org/shop.git"
    text = "open a pull request at https://github.com/org/shop/compare/main...new/image-1"
    assert await open_pull_request(pull_request(remote), "t") == text
    assert await open_pull_request(pull_request("file:///srv/shop"), "t") == ""
    assert host.requests == []


async def test_a_failure_is_reported_with_its_reason_and_the_page_to_open() -> None:
    text = await open_pull_request(pull_request("http://gitea.invalid/org/shop"), "t")
    assert text.startswith("no pull request could be opened: ")
    assert text.endswith("; open it at http://gitea.invalid/org/shop/compare/main...new/image-1")
