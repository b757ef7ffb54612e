# SPDX-License-Identifier: Apache-2.0
"""Manifests that were rendered before, found again by everything that they were made from."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pipecd.plugins.kubernetes.manifest.manifest import Manifest

# About as many fit into 50 MB.
_OBJECTS = 5000
# What the network decides is looked at again so often.
_OPEN_FOR = 3600.0


@dataclass(frozen=True)
class _Kept:
    manifests: tuple[Manifest, ...]
    until: float | None


class Renderings:
    """Remembers the renderings that were used last, up to a number of objects."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._objects = 0

    def find(self, key: str) -> list[Manifest] | None:
        """Returns what was rendered under a key, None when it is not known or too old."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until is not None and self._now() >= kept.until:
            self._forget(key)
            return None
        self._kept.move_to_end(key)
        return list(kept.manifests)

    def keep(self, key: str, manifests: list[Manifest], *, is_open: bool) -> None:
        """Remembers a rendering; one that depends on the network not for long."""
        if key in self._kept:
            self._forget(key)
        until = self._now() + _OPEN_FOR if is_open else None
        self._kept[key] = _Kept(tuple(manifests), until)
        self._objects += len(manifests)
        while self._objects > _OBJECTS and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: str) -> None:
        self._objects -= len(self._kept.pop(key).manifests)
