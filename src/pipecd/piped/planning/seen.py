# SPDX-License-Identifier: Apache-2.0
"""Commits that were found not to matter, kept on disk.

Without them, what was ignored before a restart would be looked at once more together with what came
later, and `ignores` of the one could veto the other. The file may be lost: then only that is so.
"""

import asyncio
import json
from collections.abc import Container
from pathlib import Path
from typing import Any, cast

import structlog

from pipecd.program.atomic_write import write_atomic

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class SeenCommits:
    """For each application the last such commit, and the deployment since which it counts."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: dict[str, tuple[str, str]] = {}
        self._saved: dict[str, tuple[str, str]] = {}
        self._saving = asyncio.Lock()

    def since(self, application_id: str, deployment_id: str) -> str:
        """The commit that was seen since this deployment was triggered, or nothing."""
        last, commit = self._seen.get(application_id, ("", ""))
        return commit if last == deployment_id else ""

    def put(self, application_id: str, deployment_id: str, commit: str) -> None:
        self._seen[application_id] = deployment_id, commit

    async def load(self) -> None:
        """Reads the file of an earlier piped; one that is missing or broken is no error."""
        try:
            text = await asyncio.to_thread(self._file.read_bytes)
            found = _decoded(json.loads(text))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as e:
            log.warning("seen commits not read", error=str(e))
            return
        self._seen = {**found, **self._seen}
        self._saved = found

    async def save(self, applications: Container[str]) -> None:
        """Writes what changed; applications that are gone are forgotten."""
        async with self._saving:
            self._seen = {id_: seen for id_, seen in self._seen.items() if id_ in applications}
            if self._seen == self._saved:
                return
            wanted = dict(self._seen)
            try:
                await asyncio.to_thread(_write, self._file, json.dumps(wanted))
            except OSError as e:
                log.warning("seen commits not kept", error=str(e))
                return
            self._saved = wanted


def _decoded(content: object) -> dict[str, tuple[str, str]]:
    if not isinstance(content, dict):
        raise TypeError("the file is not an object")
    found: dict[str, tuple[str, str]] = {}
    for id_, pair in cast("dict[str, Any]", content).items():
        last, commit = pair
        found[id_] = str(last), str(commit)
    return found


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text.encode())
