# SPDX-License-Identifier: Apache-2.0
"""Which ConfigMaps and Secrets a pod template uses, and the same template with them renamed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pipecd.plugins.kubernetes.manifest.body import Body, at, changed
from pipecd.plugins.kubernetes.manifest.pod import TEMPLATE
from pipecd.sdk.diff import is_list, is_map

Rename = Callable[[str, str], str]
"""Returns the name to write for a kind and the name that stands there."""


@dataclass(frozen=True)
class _Place:
    """Where a name stands below one element of a list."""

    kind: Literal["ConfigMap", "Secret"]
    path: tuple[str, ...]


_VOLUME = (
    _Place("ConfigMap", ("configMap", "name")),
    _Place("Secret", ("secret", "secretName")),
)
_PROJECTED = (_Place("ConfigMap", ("configMap", "name")), _Place("Secret", ("secret", "name")))
_ENV = (
    _Place("ConfigMap", ("valueFrom", "configMapKeyRef", "name")),
    _Place("Secret", ("valueFrom", "secretKeyRef", "name")),
)
_ENV_FROM = (_Place("ConfigMap", ("configMapRef", "name")), _Place("Secret", ("secretRef", "name")))


def referenced(body: Body) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of the ConfigMaps and of the Secrets that a workload uses."""
    found: dict[str, set[str]] = {"ConfigMap": set(), "Secret": set()}

    def note(kind: str, name: str) -> str:
        found[kind].add(name)
        return name

    renamed(body, note)
    return frozenset(found["ConfigMap"]), frozenset(found["Secret"])


def renamed(body: Body, rename: Rename) -> dict[str, Any]:
    """Returns a workload whose pods use other names."""
    return changed(body, TEMPLATE, lambda pod: _pod(pod, rename))


def _pod(pod: Any, rename: Rename) -> Any:
    if not is_map(pod):
        return pod
    spec: dict[str, Any] = dict(pod)
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = _each(spec[field], lambda container: _container(container, rename))
    if "volumes" in spec:
        spec["volumes"] = _each(spec["volumes"], lambda volume: _volume(volume, rename))
    return spec


def _container(container: Any, rename: Rename) -> Any:
    for field, places in (("env", _ENV), ("envFrom", _ENV_FROM)):
        container = _list_in(container, (field,), places, rename)
    return container


def _volume(volume: Any, rename: Rename) -> Any:
    return _list_in(
        _renamed_at(volume, _VOLUME, rename), ("projected", "sources"), _PROJECTED, rename
    )


def _list_in(value: Any, path: tuple[str, ...], places: tuple[_Place, ...], rename: Rename) -> Any:
    if not is_list(at(value, *path)):
        return value
    return changed(
        value, path, lambda items: _each(items, lambda item: _renamed_at(item, places, rename))
    )


def _renamed_at(value: Any, places: tuple[_Place, ...], rename: Rename) -> Any:
    for place in places:
        name = at(value, *place.path)
        if isinstance(name, str):
            value = changed(value, place.path, lambda old, kind=place.kind: rename(kind, old))
    return value


def _each(items: Any, change: Callable[[Any], Any]) -> Any:
    return [change(item) for item in items] if is_list(items) else items
