# SPDX-License-Identifier: Apache-2.0
"""Parses the deliveries of each Git host: a push, a ping, or an event that is ignored."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs

from pipecd.controlplane.usecases.webhooks import Push
from pipecd.model.errors import UserMistake

_HEADS = "refs/heads/"
_BITBUCKET_PUSHES = frozenset({"repo:push", "repo:refs_changed", "mirror:repo_synchronized"})
UNSIGNED_PING = "diagnostics:ping"


@dataclass(frozen=True)
class WebhookPayload:
    """A delivery of a Git host; `push` is None for pings and other events."""

    host: str
    event: str
    push: Push | None = None


def parse_payload(headers: Mapping[str, str], body: bytes) -> WebhookPayload:
    """Parses a delivery; the names of headers are in lower case."""
    text = body.decode("utf-8", "replace")
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        # The default content type of GitHub and Gitea.
        text = parse_qs(text).get("payload", [""])[0]
    try:
        content: object = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UserMistake(
            "the delivery is not JSON", hint="set its content type to application/json"
        ) from e
    for name, (host, parse_push) in _HOSTS.items():
        if name in headers:
            event = headers[name]
            return WebhookPayload(host, event, parse_push(event, content))
    return WebhookPayload("generic", "push", _parse_generic(content))


def _parse_generic(content: object) -> Push:
    repository = _get(content, "repository")
    remotes = [repository] if isinstance(repository, str) else _get_list(repository)
    if not remotes or not all(isinstance(remote, str) and remote for remote in remotes):
        raise UserMistake(
            "the delivery has no repository",
            hint='send {"repository": "git@host:org/repo.git", "branch": "main"}',
        )
    branch = _get(content, "branch")
    branches = frozenset({branch}) if isinstance(branch, str) and branch else None
    return Push(tuple(str(remote) for remote in remotes), branches)


def _parse_github(event: str, content: object) -> Push | None:
    """GitHub, and the compatible Gitea, Forgejo and Gogs."""
    if event != "push":
        return None
    names = ("clone_url", "ssh_url", "html_url", "git_url")
    return Push(_get_texts(_get(content, "repository"), *names), _branches(_get(content, "ref")))


def _parse_gitlab(event: str, content: object) -> Push | None:
    kind = _get(content, "event_name") or _get(content, "object_kind")
    if kind not in ("push", "repository_update") or event == "Tag Push Hook":
        return None
    names = ("git_http_url", "git_ssh_url", "web_url", "homepage")
    remotes = (
        *_get_texts(_get(content, "project"), *names),
        *_get_texts(_get(content, "repository"), *names),
    )
    # A system hook lists every updated ref.
    refs = (_get(content, "ref"), *_get_list(_get(content, "refs")))
    return Push(tuple(dict.fromkeys(remotes)), _branches(*refs))


def _parse_bitbucket(event: str, content: object) -> Push | None:
    if event not in _BITBUCKET_PUSHES:
        return None
    repository = _get(content, "repository")
    links = _get(repository, "links")
    remotes = [*_get_texts(_get(links, "html"), "href")]
    for link in _get_list(_get(links, "clone")):
        remotes += _get_texts(link, "href")
    slug, key = _get(repository, "slug"), _get(repository, "project", "key")
    if event != "repo:push" and isinstance(slug, str) and isinstance(key, str):
        # Older servers send no URL. A host without a dot stands for any: the path is compared.
        remotes.append(f"ssh://bitbucket/{key}/{slug}")
    return Push(tuple(remotes), _bitbucket_branches(content))


def _bitbucket_branches(content: object) -> frozenset[str] | None:
    """The branches among the changed refs; None if the delivery has no refs."""
    changes = _get_list(_get(content, "push", "changes")) or _get_list(_get(content, "changes"))
    refs = [
        ref
        for change in changes
        for ref in (_get(change, "new"), _get(change, "old"), _get(change, "ref"))
        if _get(ref, "type") is not None
    ]
    if not refs:
        return None
    branches = (ref for ref in refs if str(_get(ref, "type")).lower() == "branch")
    names = (_get(branch, "name") or _get(branch, "displayId") for branch in branches)
    return frozenset(name for name in names if isinstance(name, str))


def _branches(*refs: object) -> frozenset[str] | None:
    """The branches among the refs; None if the delivery has no refs."""
    names = [ref for ref in refs if isinstance(ref, str)]
    if not names:
        return None
    return frozenset(name.removeprefix(_HEADS) for name in names if name.startswith(_HEADS))


def _get_texts(content: object, *names: str) -> tuple[str, ...]:
    """The non-empty strings under these keys."""
    values = (_get(content, name) for name in names)
    return tuple(value for value in values if isinstance(value, str) and value)


def _get(content: object, *path: str) -> object:
    """The value at a path of keys, or None."""
    for name in path:
        if not isinstance(content, dict):
            return None
        content = cast("dict[str, Any]", content).get(name)
    return content


def _get_list(content: object) -> list[object]:
    return cast("list[object]", content) if isinstance(content, list) else []


# Gitea and Forgejo also send GitHub's headers, so their own headers come first.
_HOSTS: dict[str, tuple[str, Callable[[str, object], Push | None]]] = {
    "x-forgejo-event": ("Forgejo", _parse_github),
    "x-gitea-event": ("Gitea", _parse_github),
    "x-gogs-event": ("Gogs", _parse_github),
    "x-github-event": ("GitHub", _parse_github),
    "x-gitlab-event": ("GitLab", _parse_gitlab),
    "x-event-key": ("Bitbucket", _parse_bitbucket),
}
