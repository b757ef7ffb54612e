# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a live object: as little as the tree, its health and drift need."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipecd.plugins.kubernetes.live.health import health
from pipecd.plugins.kubernetes.live.verdict import Verdict
from pipecd.plugins.kubernetes.manifest.body import list_at, text_at, without
from pipecd.plugins.kubernetes.manifest.key import Key
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import managing_application


@dataclass(frozen=True, slots=True)
class Sighting:
    """A live object; only one that an application manages itself keeps its body, as bytes.

    Parsed bodies would take ten times the memory.
    """

    uid: str
    key: Key
    owners: tuple[str, ...]
    application: str
    created_at: datetime | None
    verdict: Verdict
    body: bytes = b""

    @property
    def manifest(self) -> Manifest:
        """The object to compare with Git."""
        return Manifest(json.loads(self.body))


def sighting(body: Any, api_version: str, kind: str) -> Sighting:
    """Returns what is remembered; objects of a list do not tell their own kind."""
    whole = {**body, "apiVersion": api_version, "kind": kind}
    owners = tuple(text_at(owner, "uid") for owner in list_at(whole, "metadata", "ownerReferences"))
    application = managing_application(whole)
    return Sighting(
        uid=text_at(whole, "metadata", "uid"),
        key=Manifest(whole).key,
        owners=owners,
        application=application,
        created_at=_moment(text_at(whole, "metadata", "creationTimestamp")),
        verdict=health(whole),
        body=_compact(whole) if application else b"",
    )


def _compact(body: Any) -> bytes:
    kept = without(without(body, "metadata", "managedFields"), "status")
    # It changes with the status too, which is judged above.
    kept = without(kept, "metadata", "resourceVersion")
    return json.dumps(kept, separators=(",", ":")).encode()


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


class Sightings:
    """The objects of one watch, found by their application and by their owner."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Sighting] = {}
        self._by_application: dict[str, set[str]] = {}
        self._by_owner: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def of(self, uid: str) -> Sighting | None:
        """Returns an object, None for one that is not known."""
        return self._by_uid.get(uid)

    def put(self, seen: Sighting) -> bool:
        """Remembers an object and reports whether it changed.

        One that nobody owns and no application manages is of no use.
        """
        before = self.drop(seen.uid)
        if not seen.application and not seen.owners:
            return before is not None
        self._by_uid[seen.uid] = seen
        if seen.application:
            self._by_application.setdefault(seen.application, set()).add(seen.uid)
        for owner in seen.owners:
            self._by_owner.setdefault(owner, set()).add(seen.uid)
        return seen != before

    def drop(self, uid: str) -> Sighting | None:
        """Forgets an object and returns what was known of it."""
        seen = self._by_uid.pop(uid, None)
        if seen is not None:
            _forget(self._by_application, seen.application, uid)
            for owner in seen.owners:
                _forget(self._by_owner, owner, uid)
        return seen

    def replace(self, all_seen: Iterable[Sighting]) -> list[Sighting]:
        """Remembers these objects and no others, and returns what changed by that."""
        there = {seen.uid: seen for seen in all_seen}
        gone = [self.drop(uid) for uid in list(self._by_uid) if uid not in there]
        return [*filter(None, gone), *(seen for seen in there.values() if self.put(seen))]

    def of_application(self, application: str) -> Iterator[Sighting]:
        """Yields what an application manages itself."""
        return (self._by_uid[uid] for uid in self._by_application.get(application, ()))

    def below(self, uid: str) -> Iterator[Sighting]:
        """Yields what an object owns."""
        return (self._by_uid[child] for child in self._by_owner.get(uid, ()))


def _forget(index: dict[str, set[str]], name: str, uid: str) -> None:
    if name in index:
        index[name].discard(uid)
        if not index[name]:
            del index[name]
