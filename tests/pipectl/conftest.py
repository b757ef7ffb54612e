# SPDX-License-Identifier: Apache-2.0
"""pipectl on the command line, and a piped that has reported its repository."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from pipecd.commandline.main import run
from pipecd.pipectl.cli import tree
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped


@pytest.fixture(autouse=True)
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts; that of the user who runs the tests is not read."""
    file = tmp_path / "config" / "contexts.json"
    monkeypatch.setenv("PIPECTL_CONFIG", str(file))
    return file


@pytest.fixture(autouse=True)
def only_warnings_are_logged() -> Iterator[None]:
    """The control plane is in this process, and its log would be in the output of pipectl."""
    level = structlog.make_filtering_bound_logger(logging.WARNING)
    before = structlog.get_config()
    structlog.configure(wrapper_class=level)
    yield
    structlog.configure(**before)


@pytest.fixture
def piped_with_repository() -> Callable[[Any], Awaitable[str]]:
    async def register(plane: Any) -> str:
        registered = await plane.running.cases.pipeds.register("p", "", by=plane.admin)

        def describe(piped: Piped) -> None:
            piped.repositories.append(
                ApplicationGitRepository(id="repo", remote="file:///tmp/repo", branch="main")
            )

        await plane.running.stores.pipeds.update(registered.id, describe)
        return registered.id

    return register


class Typed:
    """Types command lines for one control plane."""

    def __init__(self, plane: Any, capsys: pytest.CaptureFixture[str], api_key: str) -> None:
        self._plane, self._capsys, self._api_key = plane, capsys, api_key

    async def __call__(self, line: str) -> tuple[int, str, str]:
        how = ["--address", self._plane.address, "--api-key", self._api_key, "--insecure"]
        code = await asyncio.to_thread(run, tree(), [*line.split(), *how])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err


@pytest.fixture
def typed_at(capsys: pytest.CaptureFixture[str]) -> Callable[..., Typed]:
    """Types for a control plane, with its read-write key or another one."""
    return lambda plane, api_key="": Typed(plane, capsys, api_key or plane.api_key)


@pytest.fixture
def type_line(
    capsys: pytest.CaptureFixture[str],
) -> Callable[[str], Awaitable[tuple[int, str, str]]]:
    """Types a whole command line, its connection included."""

    async def typed(line: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, tree(), line.split())
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return typed
