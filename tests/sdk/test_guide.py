# SPDX-License-Identifier: Apache-2.0
"""The plugins of the guide run in every way that the guide describes."""

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest

from pipecd import sdk
from pipecd.commandline.main import run
from pipecd.config.application import ApplicationSpec
from pipecd.config.catalog import load_catalog
from pipecd.config.piped import PluginSpec
from pipecd.config.read import read_file
from pipecd.pipectl.cli import tree as pipectl
from pipecd.piped.pluginhost.host import PluginHost
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.plugin import Plugin
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import (
    Commit,
    Deployment,
    DeploymentTrigger,
    PipelineStage,
)
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.source_pb2 import DeploymentSource
from pipecd.sdk import StageContext, StageResult, StageStatus
from pipecd.sdk import config as sdk_config
from pipecd.sdk.testing import MemoryHost, StageBench
from servers.server import free_port

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "plugins.md").read_text()
FILES = dict(re.findall(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", GUIDE, re.M | re.S))
CODE = re.findall(r"^```(?!yaml|toml|text)\S+\n.*?^```$", GUIDE, re.M | re.S)
PROSE = re.sub(r"^```.*?^```$", "", GUIDE, flags=re.M | re.S)
WORDS = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", PROSE))))
BIN = str(Path(sys.executable).parent)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Returns a directory with every file of the guide, programs as executables."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
        if content.startswith("#!"):
            (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.fixture
def load(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Callable[[str], Any], None, None]:
    """Returns a function that imports a file of the guide, for this test only."""
    monkeypatch.syspath_prepend(str(directory))
    invalidate_caches()
    yield import_module
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_every_python_block_of_the_guide_is_a_file_that_is_run() -> None:
    assert set(FILES) == {
        "tcpcheck.py", "test_tcpcheck.py", "maintenance.py", "folder.py", "test_folder.py"
    }  # fmt: skip
    assert len(CODE) == len(FILES)


def test_the_plugin_is_as_short_as_the_guide_says() -> None:
    assert len([line for line in FILES["tcpcheck.py"].splitlines() if line.strip()]) <= 40


def test_the_guide_documents_every_public_name() -> None:
    public = {*sdk.__all__, *sdk_config.__all__}
    members = {*dir(StageContext), *StageContext.__dataclass_fields__, *vars(StageResult)}
    assert (public | {m for m in members if not m.startswith("_")}) - WORDS == set()


@pytest.mark.slow
def test_the_tests_of_the_guide_pass(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "."],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(directory)},
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


async def execute_stage(plugin: Plugin, options: dict[str, object]) -> tuple[StageStatus, str]:
    plugin_input = pb.ExecutePluginInput(
        deployment=Deployment(
            id="d",
            application_id="a",
            application_name="shop",
            piped_id="p",
            project_id="p",
            git_path=ApplicationGitPath(repo=ApplicationGitRepository(id="r"), path="shop"),
            trigger=DeploymentTrigger(
                commit=Commit(hash="c", message="m", author="a", branch="b", created_at=1),
                timestamp=1,
            ),
            created_at=1,
            updated_at=1,
        ),
        stage=PipelineStage(id="s", name="TCP_CHECK", created_at=1, updated_at=1),
        stage_config=json.dumps(options).encode(),
        target_deployment_source=DeploymentSource(
            application_directory="/", commit_hash="c", application_config_filename="f"
        ),
    )
    response = await plugin.ExecuteStage(pb.ExecuteStageRequest(input=plugin_input))
    return StageStatus(response.status), response.message


@asynccontextmanager
async def tcp_server() -> AsyncGenerator[int, None]:
    async with await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


APPLICATION = ApplicationSpec()


def started(plugins: list[PluginSpec], host: MemoryHost) -> AbstractAsyncContextManager[Any]:
    callbacks: Any = host
    callbacks.masks = SecretMasks()
    return PluginHost.start(plugins, callbacks=callbacks)


@pytest.mark.slow
async def test_piped_starts_calls_and_stops_the_program(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", BIN, prepend=os.pathsep)
    host = MemoryHost()
    url, port = (directory / "tcpcheck.py").as_uri(), free_port()
    async with started([PluginSpec(name="tcpcheck", url=url, port=port)], host) as plugins:
        plugin = plugins.for_stage("TCP_CHECK", APPLICATION)
        async with tcp_server() as tcp_port:
            address = f"127.0.0.1:{tcp_port}"
            result = await execute_stage(plugin, {"port": tcp_port})
        assert result == (StageStatus.SUCCESS, f"{address} answers")
        assert host.lines == [f"{address} answers"]
        assert host.stage_metadata == {sdk.DISPLAY_KEY: f"{address} answers"}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.slow
def test_the_check_prints_what_the_guide_shows(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = re.findall(r"^```text\n\$ (pipectl plugin check .*?)^```$", GUIDE, re.M | re.S)
    command, _, output = shown.partition("\n")
    monkeypatch.setenv("PATH", BIN, prepend=os.pathsep)
    monkeypatch.chdir(directory)
    assert run(pipectl(), shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == output


def install(directory: Path) -> None:
    """Installs the entry points of the guide."""
    (project,) = re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.M | re.S)
    groups = tomllib.loads(project)["project"]["entry-points"]
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    information = directory / "tcpcheck-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tcpcheck\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join(lines))


@pytest.mark.slow
@pytest.mark.usefixtures("load")
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(PluginSpec(name="tcpcheck"), id="in its own process"),
        pytest.param(
            PluginSpec(name="tcpcheck", url="builtin://tcpcheck"), id="in the process of piped"
        ),
    ],
)
async def test_an_installed_plugin_needs_only_its_name(
    directory: Path, entry: PluginSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(directory)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    host = MemoryHost()
    async with started([], host) as plugins:
        assert "tcpcheck" not in plugins.names
    async with started([entry], host) as plugins, tcp_server() as tcp_port:
        plugin = plugins.for_stage("TCP_CHECK", APPLICATION)
        assert plugin.name == "tcpcheck"
        status, _ = await execute_stage(plugin, {"port": tcp_port})
    assert status is StageStatus.SUCCESS
    assert host.lines == [f"127.0.0.1:{tcp_port} answers"]


@pytest.mark.usefixtures("load")
def test_options_of_an_installed_plugin_are_checked_with_the_file(directory: Path) -> None:
    (sample,) = (
        block for block in re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.M | re.S)
        if "name: TCP_CHECK" in block
    )  # fmt: skip
    before = read_file(sample, file="app.pipecd.yaml", catalog=load_catalog()).warnings
    assert ["no installed plugin has this stage" in str(w) for w in before] == [True]
    install(directory)
    assert read_file(sample, file="app.pipecd.yaml", catalog=load_catalog()).warnings == ()
    wrong = sample.replace("within: 30s", "within: soon")
    (warning,) = read_file(wrong, file="app.pipecd.yaml", catalog=load_catalog()).warnings
    assert "within" in str(warning)


async def test_invalid_options_are_reported_while_planning(load: Callable[[str], Any]) -> None:
    plugin = load("tcpcheck").TcpCheckPlugin()
    requested = sdk.RequestedStage("TCP_CHECK", 0, "", b'{"within": "1m"}')
    with pytest.raises(sdk.UserMistake, match="port: must be set"):
        await plugin.plan_stage(requested, rollback=True)


async def test_the_rollback_stage_undoes_the_stage(
    load: Callable[[str], Any], directory: Path
) -> None:
    plugin = load("maintenance").MaintenancePlugin()
    (directory / "up.sh").write_text("echo up")
    (directory / "down.sh").write_text("echo down")
    requested = sdk.RequestedStage("MAINTENANCE", 3, "", b"")
    planned = await plugin.plan_stage(requested, rollback=True)
    assert [(p.name, p.index, p.is_rollback) for p in planned] == [
        ("MAINTENANCE", 3, False),
        ("MAINTENANCE_ROLLBACK", 3, True),
    ]
    assert len(await plugin.plan_stage(requested, rollback=False)) == 1
    bench = StageBench(plugin, directory)
    undone = await bench.run("MAINTENANCE_ROLLBACK", is_rollback=True)
    assert undone.status is StageStatus.SKIPPED
    assert (await bench.run("MAINTENANCE")).status is StageStatus.SUCCESS
    await bench.run("MAINTENANCE_ROLLBACK", is_rollback=True)
    assert bench.host.lines == ["There is no sign", "up", "down"]
    (directory / "up.sh").write_text("echo no paint; exit 3")
    assert (await bench.run("MAINTENANCE")).message == "The script ended with 3: no paint"
