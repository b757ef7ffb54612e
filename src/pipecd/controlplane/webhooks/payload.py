# SPDX-License-Identifier: Apache-2.0
"""What a delivery says, in the words of each Git host: a push, a ping, or nothing for us."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs

from pipecd.controlplane.usecases.webhooks import Push
from pipecd.model.errors import UserMistake

_HEADS = "refs/heads/"
_BITBUCKET_PUSHES = frozenset({"repo:push", "repo:refs_changed", "mirror:repo_synchronized"})
UNSIGNED_PING = "diagnostics:ping"


@dataclass(frozen=True)
class Message:
    """What arrived, from what kind of host; without a push it is a ping or none of our concern."""

    host: str
    event: str
    push: Push | None = None


def read_message(headers: Mapping[str, str], body: bytes) -> Message:
    """The message; the names of headers are in lower case."""
    for name, (host, read) in _HOSTS.items():
        if name in headers:
            event = headers[name]
            return Message(host, event, read(event, _content(headers, body)))
    content = _content(headers, body)
    return Message("generic", "push", _generic(content))


def _content(headers: Mapping[str, str], body: bytes) -> object:
    text = body.decode("utf-8", "replace")
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        # What GitHub and Gitea send unless they are told to send JSON.
        text = parse_qs(text).get("payload", [""])[0]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UserMistake(
            "the delivery is not JSON", hint="choose application/json as its content type"
        ) from e


def _generic(content: object) -> Push:
    given = _at(content, "repository")
    remotes = [given] if isinstance(given, str) else _list(given)
    if not remotes or not all(isinstance(remote, str) and remote for remote in remotes):
        raise UserMistake(
            "the delivery names no repository",
            hint='send {"repository": "git@host:org/repo.git", "branch": "main"}',
        )
    branch = _at(content, "branch")
    branches = frozenset({branch}) if isinstance(branch, str) and branch else None
    return Push(tuple(str(remote) for remote in remotes), branches)


def _github(event: str, content: object) -> Push | None:
    """GitHub, and those who speak like it: Gitea, Forgejo, Gogs."""
    if event != "push":
        return None
    names = ("clone_url", "ssh_url", "html_url", "git_url")
    return Push(_texts(_at(content, "repository"), *names), _branches(_at(content, "ref")))


def _gitlab(event: str, content: object) -> Push | None:
    kind = _at(content, "event_name") or _at(content, "object_kind")
    if kind not in ("push", "repository_update") or event == "Tag Push Hook":
        return None
    names = ("git_http_url", "git_ssh_url", "web_url", "homepage")
    remotes = (
        *_texts(_at(content, "project"), *names),
        *_texts(_at(content, "repository"), *names),
    )
    # A hook of the whole installation lists every ref that was updated.
    refs = (_at(content, "ref"), *_list(_at(content, "refs")))
    return Push(tuple(dict.fromkeys(remotes)), _branches(*refs))


def _bitbucket(event: str, content: object) -> Push | None:
    if event not in _BITBUCKET_PUSHES:
        return None
    repository = _at(content, "repository")
    remotes = [*_bitbucket_links(repository)]
    slug, key = _at(repository, "slug"), _at(repository, "project", "key")
    if event != "repo:push" and isinstance(slug, str) and isinstance(key, str):
        # Older servers name no address; the path alone is enough where it is not ambiguous.
        remotes.append(f"/{key}/{slug}")
    return Push(tuple(remotes), _bitbucket_branches(content))


def _bitbucket_links(repository: object) -> Iterator[str]:
    links = _at(repository, "links")
    yield from _texts(_at(links, "html"), "href")
    for link in _list(_at(links, "clone")):
        yield from _texts(link, "href")


def _bitbucket_branches(content: object) -> frozenset[str] | None:
    changes = _list(_at(content, "push", "changes")) or _list(_at(content, "changes"))
    sides = [
        side
        for change in changes
        for side in (_at(change, "new"), _at(change, "old"), _at(change, "ref"))
        if _at(side, "type") is not None
    ]
    if not sides:
        return None
    branches = (side for side in sides if str(_at(side, "type")).lower() == "branch")
    names = (_at(branch, "name") or _at(branch, "displayId") for branch in branches)
    return frozenset(name for name in names if isinstance(name, str))


def _branches(*refs: object) -> frozenset[str] | None:
    """The branches among refs; None when no ref is told at all."""
    told = [ref for ref in refs if isinstance(ref, str)]
    if not told:
        return None
    return frozenset(ref.removeprefix(_HEADS) for ref in told if ref.startswith(_HEADS))


def _texts(content: object, *names: str) -> tuple[str, ...]:
    found = (_at(content, name) for name in names)
    return tuple(text for text in found if isinstance(text, str) and text)


def _at(content: object, *path: str) -> object:
    """What stands at a path of keys, or None."""
    for name in path:
        if not isinstance(content, dict):
            return None
        content = cast("dict[str, Any]", content).get(name)
    return content


def _list(content: object) -> list[object]:
    return cast("list[object]", content) if isinstance(content, list) else []


# Gitea and Forgejo also send the headers of GitHub, so theirs are looked for first.
_HOSTS: dict[str, tuple[str, Callable[[str, object], Push | None]]] = {
    "x-forgejo-event": ("Forgejo", _github),
    "x-gitea-event": ("Gitea", _github),
    "x-gogs-event": ("Gogs", _github),
    "x-github-event": ("GitHub", _github),
    "x-gitlab-event": ("GitLab", _gitlab),
    "x-event-key": ("Bitbucket", _bitbucket),
}
