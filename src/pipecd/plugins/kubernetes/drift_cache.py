# SPDX-License-Identifier: Apache-2.0
"""Caches how each object of an application differs from Git, so that a change compares one object.

A changed object is compared with what the last live state had of it. If nothing that the live state
shows is different, such as after a change of a field that Git does not declare, piped need not read
the live state of the application again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipecd.plugins.kubernetes.drift import (
    ObjectDrift,
    compared_objects,
    ignored_paths,
    object_drift,
)
from pipecd.plugins.kubernetes.manifest import (
    IGNORE_DRIFT,
    Identity,
    Manifest,
    is_enabled,
)
from pipecd.plugins.kubernetes.watch import ObservedObject
from pipecd.sdk.unstructured import Body

_NOT_DECLARED = b""


@dataclass(slots=True)
class _ComparedObject:
    """A live object, what Git declares of it as JSON, and how the two differ."""

    observed: ObservedObject
    declared: bytes
    ignored: frozenset[str]
    drift: ObjectDrift | None

    def compared_with(self, observed: ObservedObject) -> ObjectDrift | None:
        """Compares another version of the live object with Git."""
        if observed.body == self.observed.body:
            return self.drift
        return _drift(observed, self.declared, self.ignored)


@dataclass
class _ComparedApplication:
    """The objects of an application by uid as its last live state had them.

    It `is_current` while each change of an object is either without effect on that live state or
    notified to piped.
    """

    objects: dict[str, _ComparedObject] = field(default_factory=dict[str, _ComparedObject])
    is_current: bool = False
    is_used: bool = True


class DriftCache:
    """The comparisons with Git of the applications on one cluster.

    A live state calls `expire` before it reads the objects, and `compare` with those that it has
    read.
    """

    def __init__(self) -> None:
        self._applications: dict[str, _ComparedApplication] = {}

    def expire(self, application: str) -> None:
        """Makes every change of an application count until it is compared again."""
        if application in self._applications:
            self._applications[application].is_current = False

    def compare(
        self,
        application: str,
        live: Sequence[ObservedObject],
        declared: Iterable[Manifest],
        ignored: Mapping[str, Iterable[str]],
        *,
        is_watched: bool = True,
    ) -> dict[Identity, ObjectDrift]:
        """Returns how the objects of an application differ from Git, by their identity.

        Only objects that differ from those of the last call, or whose manifest does, are compared.
        `is_watched` means that each change of these objects is observed.
        """
        compared = self._applications.setdefault(application, _ComparedApplication())
        before, objects = compared.objects, dict[str, _ComparedObject]()
        manifests, drifts = compared_objects(declared), dict[Identity, ObjectDrift]()
        by_identity = {observed.key.identity: observed for observed in live}
        if is_ambiguous := len(by_identity) < len(live):
            # An object with the ignore annotation is not compared, so the other one counts.
            ordered = sorted(live, key=lambda o: not is_enabled(o.manifest, IGNORE_DRIFT))
            by_identity = {observed.key.identity: observed for observed in ordered}
        for identity in by_identity.keys() | manifests.keys():
            observed, manifest = by_identity.get(identity), manifests.get(identity)
            if observed is None:
                drift = object_drift(None, manifest, frozenset())
            else:
                text = _NOT_DECLARED if manifest is None else _compact(manifest.body)
                paths = ignored_paths(observed.key, ignored)
                entry = _compare(before.get(observed.uid), observed, text, paths)
                objects[observed.uid], drift = entry, entry.drift
            if drift is not None:
                drifts[identity] = drift
        compared.objects, compared.is_used = objects, True
        compared.is_current = is_watched and not is_ambiguous
        return drifts

    def changes_live_state(self, observed: ObservedObject, *, is_deleted: bool = False) -> bool:
        """Reports whether the last live state of its application is out of date by a change."""
        compared = self._applications.get(observed.application)
        entry = compared.objects.get(observed.uid) if compared else None
        if compared is None or entry is None or not compared.is_current:
            return True
        if is_deleted:
            del compared.objects[observed.uid]
            return True
        if replace(observed, body=b"") != replace(entry.observed, body=b""):
            return True
        try:
            if entry.compared_with(observed) != entry.drift:
                return True
        except RecursionError:
            # An object that is nested too deeply fails the live state of its own application only.
            return True
        entry.observed = observed
        return False

    def remove_unused(self) -> None:
        """Removes the applications that were not compared since the last call."""
        used = {name: each for name, each in self._applications.items() if each.is_used}
        for each in used.values():
            each.is_used = False
        self._applications = used


def _compare(
    before: _ComparedObject | None,
    observed: ObservedObject,
    declared: bytes,
    ignored: frozenset[str],
) -> _ComparedObject:
    if before is not None and (before.declared, before.ignored) == (declared, ignored):
        drift = before.compared_with(observed)
        return _ComparedObject(observed, before.declared, before.ignored, drift)
    return _ComparedObject(observed, declared, ignored, _drift(observed, declared, ignored))


def _drift(
    observed: ObservedObject, declared: bytes, ignored: frozenset[str]
) -> ObjectDrift | None:
    manifest = None if declared == _NOT_DECLARED else Manifest(json.loads(declared))
    return object_drift(observed.manifest, manifest, ignored)


def _compact(body: Body) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
