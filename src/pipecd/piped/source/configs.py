# SPDX-License-Identifier: Apache-2.0
"""The configurations of many applications at one commit, read without a checkout."""

import asyncio
from collections.abc import Iterable, Mapping

from pipecd.cache import LruCache
from pipecd.config.catalog import Catalog
from pipecd.config.read import ApplicationConfig, read_application
from pipecd.git.objects import Blob, Missing, Objects
from pipecd.model.errors import NotFound, PipecdError, UserMistake

# A file that did not change between two commits is not read again.
_REMEMBERED = 5_000

Read = ApplicationConfig | PipecdError


class Configs:
    """Reads application files from mirrors; equal content is parsed once."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known = LruCache[tuple[str, str], Read](_REMEMBERED)

    async def at(self, objects: Objects, commit: str, paths: Iterable[str]) -> Mapping[str, Read]:
        """The configuration at each path, or why there is none."""
        places = await objects.locate(commit, dict.fromkeys(paths))
        found = {path: blob for path, blob in places.items() if isinstance(blob, Blob)}
        read = {p: known for p, b in found.items() if (known := self._known.get((b.id, p)))}
        unread = {path: blob for path, blob in found.items() if path not in read}
        if unread:
            contents = await objects.read(unread.values())
            texts = {path: contents[blob.id] for path, blob in unread.items()}
            read |= await asyncio.to_thread(self._parse, texts)
            for path, blob in unread.items():
                self._known.put((blob.id, path), read[path])
        return {
            path: _absent(path, place) if isinstance(place, Missing) else read[path]
            for path, place in places.items()
        }

    def _parse(self, texts: Mapping[str, bytes]) -> dict[str, Read]:
        parsed: dict[str, Read] = {}
        for path, text in texts.items():
            try:
                parsed[path] = read_application(text, file=path, catalog=self._catalog)
            except PipecdError as e:
                parsed[path] = e
        return parsed


def _absent(path: str, missing: Missing) -> PipecdError:
    if missing.is_absent:
        return NotFound(
            f"application config file {path} was not found in Git",
            hint="add the file, correct the path of the application, or delete the application",
        )
    return UserMistake(f"application config file {path} {missing.reason}")
