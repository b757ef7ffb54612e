# SPDX-License-Identifier: Apache-2.0
"""The pushes of each Git host are parsed; other events are not taken for pushes."""

import json
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.usecases.webhooks import Push
from pipecd.controlplane.webhooks.payload import WebhookPayload, parse_payload
from pipecd.model.errors import UserMistake
from pipecd.proto.model.common_pb2 import ApplicationGitRepository

GITHUB = {
    "ref": "refs/heads/main",
    "repository": {
        "full_name": "shop/site",
        "clone_url": "https://git.example.com/shop/site.git",
        "ssh_url": "git@git.example.com:shop/site.git",
        "html_url": "https://git.example.com/shop/site",
        "git_url": "git://git.example.com/shop/site.git",
    },
}
GITLAB = {
    "object_kind": "push",
    "event_name": "push",
    "ref": "refs/heads/main",
    "project": {
        "web_url": "https://git.example.com/shop/site",
        "git_ssh_url": "git@git.example.com:shop/site.git",
        "git_http_url": "https://git.example.com/shop/site.git",
    },
}
SYSTEM = {
    "event_name": "repository_update",
    "project": GITLAB["project"],
    "refs": ["refs/heads/main", "refs/tags/v1"],
}
CLOUD = {
    "push": {
        "changes": [
            {"old": None, "new": {"type": "branch", "name": "main"}},
            {"old": {"type": "tag", "name": "v0"}, "new": None},
        ]
    },
    "repository": {
        "full_name": "shop/site",
        "links": {"html": {"href": "https://git.example.com/shop/site"}},
    },
}
SERVER = {
    "eventKey": "repo:refs_changed",
    "repository": {
        "slug": "site",
        "project": {"key": "SHOP"},
        "links": {
            "clone": [
                {"name": "http", "href": "https://git.example.com/scm/shop/site.git"},
                {"name": "ssh", "href": "ssh://git@git.example.com:7999/shop/site.git"},
            ]
        },
    },
    "changes": [{"ref": {"id": "refs/heads/main", "displayId": "main", "type": "BRANCH"}}],
}
OLD_SERVER = {**SERVER, "repository": {"slug": "site", "project": {"key": "SHOP"}}}


def parse(headers: dict[str, str], content: object) -> WebhookPayload:
    return parse_payload(headers, json.dumps(content).encode())


def parse_push(headers: dict[str, str], content: object) -> Push:
    push = parse(headers, content).push
    assert push is not None
    return push


def watched(
    branch: str = "main", remote: str = "ssh://git@git.example.com/shop/site.git"
) -> ApplicationGitRepository:
    return ApplicationGitRepository(id="site", remote=remote, branch=branch)


@pytest.mark.parametrize(
    ("headers", "content", "host"),
    [
        pytest.param({"x-github-event": "push"}, GITHUB, "GitHub", id="GitHub"),
        pytest.param(
            {"x-github-event": "push", "x-gitea-event": "push"}, GITHUB, "Gitea", id="Gitea"
        ),
        pytest.param(
            {"x-gitea-event": "push", "x-forgejo-event": "push"}, GITHUB, "Forgejo", id="Forgejo"
        ),
        pytest.param({"x-gitlab-event": "Push Hook"}, GITLAB, "GitLab", id="GitLab"),
        pytest.param({"x-gitlab-event": "System Hook"}, SYSTEM, "GitLab", id="GitLab system hook"),
        pytest.param({"x-event-key": "repo:push"}, CLOUD, "Bitbucket", id="Bitbucket Cloud"),
        pytest.param({"x-event-key": "repo:refs_changed"}, SERVER, "Bitbucket", id="Data Center"),
        pytest.param(
            {"x-event-key": "repo:refs_changed"}, OLD_SERVER, "Bitbucket", id="older Data Center"
        ),
        pytest.param(
            {},
            {"repository": "git.example.com:shop/site", "branch": "main"},
            "generic",
            id="generic",
        ),
    ],
)
def test_a_push(headers: dict[str, str], content: object, host: str) -> None:
    delivery = parse(headers, content)
    assert delivery.host == host
    assert delivery.push is not None
    assert delivery.push.matches(watched())
    assert delivery.push.matches(watched(branch=""))
    assert not delivery.push.matches(watched(branch="production"))
    assert not delivery.push.matches(watched(remote="git@git.example.com:shop/other.git"))


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        pytest.param({"x-github-event": "ping"}, {"zen": "."}, id="a ping of GitHub"),
        pytest.param({"x-github-event": "issues"}, GITHUB, id="another event of GitHub"),
        pytest.param({"x-gitlab-event": "Tag Push Hook"}, GITLAB, id="a tag at GitLab"),
        pytest.param({"x-gitlab-event": "Note Hook"}, {"object_kind": "note"}, id="a comment"),
        pytest.param({"x-event-key": "diagnostics:ping"}, {"test": True}, id="a test of Bitbucket"),
    ],
)
def test_other_events(headers: dict[str, str], content: object) -> None:
    assert parse(headers, content).push is None


def test_a_pushed_tag_updates_no_branch() -> None:
    push = parse_push({"x-github-event": "push"}, {**GITHUB, "ref": "refs/tags/v1"})
    assert push.branches == frozenset()


def test_a_push_without_a_ref_matches_any_branch() -> None:
    push = parse_push({"x-github-event": "push"}, {"repository": GITHUB["repository"]})
    assert push.matches(watched(branch="production"))
    assert parse_push({"x-event-key": "mirror:repo_synchronized"}, {}).branches is None


def test_the_payload_of_a_form_is_parsed() -> None:
    body = urlencode({"payload": json.dumps(GITHUB)}).encode()
    headers = {"x-github-event": "push", "content-type": "application/x-www-form-urlencoded"}
    assert parse_payload(headers, body).push == parse({"x-github-event": "push"}, GITHUB).push


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"[" * 100_000, id="deep nesting"),
        pytest.param(b"{}", id="no repository"),
        pytest.param(b'{"repository": ""}', id="an empty repository"),
        pytest.param(b'{"repository": [1]}', id="a repository that is not a string"),
    ],
)
def test_the_error_of_an_invalid_delivery_has_a_hint(body: bytes) -> None:
    with pytest.raises(UserMistake) as error:
        parse_payload({}, body)
    assert error.value.hint


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "repository",
                    "project",
                    "links",
                    "clone",
                    "changes",
                    "push",
                    "ref",
                    "refs",
                    "new",
                    "old",
                    "type",
                    "name",
                    "html",
                    "href",
                    "slug",
                    "key",
                    "object_kind",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
_EVENTS = st.sampled_from(
    [
        {"x-github-event": "push"},
        {"x-gitlab-event": "Push Hook"},
        {"x-event-key": "repo:push"},
        {"x-event-key": "repo:refs_changed"},
    ]
)


@given(headers=_EVENTS, content=_JSON)
def test_any_json_is_parsed_without_an_error(headers: dict[str, str], content: object) -> None:
    push = parse(headers, content).push
    assert push is None or isinstance(push, Push)
    if push is not None:
        push.matches(watched())
