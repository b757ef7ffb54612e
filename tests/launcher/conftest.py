# SPDX-License-Identifier: Apache-2.0
"""A control plane and a server of versions for the launcher."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from launcher.setup import LauncherSetup, working
from pipecd.launcher.plan import LaunchHistory
from servers.control_plane import StartControlPlane
from servers.registry import OciRegistry


@pytest.fixture
async def setup(
    start_plane: StartControlPlane,
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[LauncherSetup]:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    monkeypatch.setattr(LaunchHistory, "restart_at", lambda *_: 0.0)
    async with start_plane() as plane:
        setup = LauncherSetup(plane, await plane.register_piped(), tmp_path, tls_registry)
        setup.key_file.write_text(setup.piped.key)
        setup.write_config()
        setup.offer("v1", working(setup.trace, "v1"))
        yield setup
