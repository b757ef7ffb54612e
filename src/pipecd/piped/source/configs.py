# SPDX-License-Identifier: Apache-2.0
"""The configuration files of applications, read from Git without a checkout.

All parts of piped share one `ApplicationConfigs`: the YAML of a file is parsed once, however many
of them read it and however many commits contain it unchanged.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pipecd.cache import LruCache
from pipecd.config.catalog import Catalog
from pipecd.config.read import ApplicationConfig, read_application
from pipecd.git.objects import Blob, Missing, Objects
from pipecd.model.errors import NotFound, PipecdError, UserMistake

# Of each repository the files that were used last are cached: so many, or as many as this number of
# commits have where more applications are read together.
_MIN_CACHED = 50
_CACHED_COMMITS = 3

ConfigResult = ApplicationConfig | PipecdError
"""A parsed configuration file, or why there is none."""


@dataclass(frozen=True)
class ConfigFile:
    """The content of a configuration file, as it is in Git and parsed."""

    text: bytes = field(repr=False)
    parsed: ConfigResult

    @property
    def config(self) -> ApplicationConfig:
        """The configuration; raises what is wrong with it."""
        if isinstance(self.parsed, PipecdError):
            # The same error is raised each time, so it must not collect tracebacks.
            raise self.parsed.with_traceback(None)
        return self.parsed


class _CachedFiles:
    """The cached files of one repository.

    A file takes several kilobytes, and a push may change all of them. What no recent commit has is
    not kept, however much room there is.
    """

    def __init__(self) -> None:
        self._limit = _MIN_CACHED
        # By the id of the blob and path.
        self.by_blob = LruCache[tuple[str, str], ConfigFile](self._limit)
        # By commit and path: a deployment reads its file several times.
        self.at_commit = LruCache[tuple[str, str], ConfigFile](self._limit)

    def make_room(self, files: int) -> None:
        """Makes room for the files that are read together at some commits."""
        if (wanted := files * _CACHED_COMMITS) > self._limit:
            self._limit = wanted
            self.by_blob.limit(wanted)
            self.at_commit.limit(wanted)


class ApplicationConfigs:
    """Reads application configurations from Git and caches them by blob and path."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._cached: WeakKeyDictionary[Objects, _CachedFiles] = WeakKeyDictionary()
        self._parsing = asyncio.Lock()

    async def at(
        self, objects: Objects, commit: str, paths: Iterable[str]
    ) -> Mapping[str, ConfigResult]:
        """Returns the configuration at each path of a commit, or why there is none."""
        files = await self._files(objects, commit, paths)
        return {p: f.parsed if isinstance(f, ConfigFile) else f for p, f in files.items()}

    async def file(self, objects: Objects, commit: str, path: str) -> ConfigFile:
        """Returns one configuration file of a commit; raises if it does not exist."""
        file = (await self._files(objects, commit, [path]))[path]
        if isinstance(file, PipecdError):
            raise file
        return file

    async def _files(
        self, objects: Objects, commit: str, paths: Iterable[str]
    ) -> dict[str, ConfigFile | PipecdError]:
        requested = dict.fromkeys(paths)
        cached = self._cached.setdefault(objects, _CachedFiles())
        known = {p: file for p in requested if (file := cached.at_commit.get((commit, p)))}
        located = await objects.locate(commit, [path for path in requested if path not in known])
        blobs = {path: blob for path, blob in located.items() if isinstance(blob, Blob)}
        files = {p: file for p, b in blobs.items() if (file := cached.by_blob.get((b.id, p)))}
        cached.make_room(len(known) + len(blobs))
        uncached = {path: blob for path, blob in blobs.items() if path not in files}
        if uncached:
            contents = await objects.read(uncached.values())
            # Several parts of piped read the files of a new commit at once; the first one parses.
            async with self._parsing:
                for path, blob in uncached.items():
                    if (file := cached.by_blob.get((blob.id, path))) is not None:
                        files[path] = file
                texts = {p: contents[b.id] for p, b in uncached.items() if p not in files}
                parsed = await asyncio.to_thread(self._parse, texts) if texts else {}
                for path, file in parsed.items():
                    cached.by_blob.put((blobs[path].id, path), file)
            files |= parsed
        results: dict[str, ConfigFile | PipecdError] = {**known}
        for path, blob in located.items():
            if not isinstance(blob, Missing):
                results[path] = files[path]
                cached.at_commit.put((commit, path), files[path])
            elif blob.is_absent:
                results[path] = NotFound(
                    f"application config file {path} was not found in Git",
                    hint="add the file, correct the path of the application, "
                    "or delete the application",
                )
            else:
                results[path] = UserMistake(f"application config file {path} {blob.reason}")
        return results

    def _parse(self, texts: Mapping[str, bytes]) -> dict[str, ConfigFile]:
        files: dict[str, ConfigFile] = {}
        for path, text in texts.items():
            try:
                parsed: ConfigResult = read_application(text, file=path, catalog=self._catalog)
            except PipecdError as e:
                parsed = e
            files[path] = ConfigFile(text, parsed)
        return files
