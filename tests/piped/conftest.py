# SPDX-License-Identifier: Apache-2.0
"""A control plane behind a gate, repositories, and whole pipeds, for the parts of a piped."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from servers import control_plane
from servers.control_plane import (
    LocalControlPlane,
    LocalPiped,
    OpenControlPlane,
    RunPiped,
    open_control_plane,
)
from servers.origin import Origin


@pytest.fixture
def new_origin(tmp_path: Path) -> Callable[[str], Origin]:
    return lambda name: Origin.begin(tmp_path / name)


@pytest.fixture
def origin(new_origin: Callable[[str], Origin]) -> Origin:
    return new_origin("origin")


@pytest.fixture
def open_plane(tmp_path: Path) -> OpenControlPlane:
    """Opens a control plane with a piped and no application."""
    return partial(open_control_plane, tmp_path)


@pytest.fixture
def running() -> Callable[..., AbstractAsyncContextManager[None]]:
    """Runs components while a block runs; one that dies fails the test."""
    return control_plane.running


@pytest.fixture
def whole_piped() -> RunPiped:
    """Registers and runs a piped: `async with whole_piped(plane, remote) as piped`."""

    @asynccontextmanager
    async def run(
        plane: LocalControlPlane, remote: str, name: str = "dev", **settings: Any
    ) -> AsyncGenerator[LocalPiped]:
        piped = await plane.register_piped(name)
        async with piped.run(remote, **settings):
            yield piped

    return run
