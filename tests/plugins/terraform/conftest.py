# SPDX-License-Identifier: Apache-2.0
"""An application that the real Terraform deploys, with its state in a local file."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pipecd.plugins.terraform.plugin import TerraformPlugin
from pipecd.sdk import PluginEntry, StartContext
from pipecd.sdk.testing import MemoryHost
from plugins.terraform.testbed import Application


@pytest.fixture
def terraform_in_path(terraform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts Terraform into PATH, without the settings of this machine for it."""
    for name in os.environ:
        if name.startswith("TF_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(Path(terraform).parent), prepend=os.pathsep)


@pytest.fixture
async def tofu_application(
    application: Application, tofu: str, monkeypatch: pytest.MonkeyPatch
) -> Application:
    """The application with OpenTofu instead of Terraform."""
    monkeypatch.setenv("PATH", str(Path(tofu).parent), prepend=os.pathsep)
    application.target = {"tool": "opentofu"}
    return application


@pytest.fixture
async def application(terraform_in_path: None, tmp_path: Path) -> AsyncIterator[Application]:
    plugin, host = TerraformPlugin(), MemoryHost()
    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("terraform"), host, lifetime))
        yield Application(tmp_path, plugin, host)
