# SPDX-License-Identifier: Apache-2.0
"""`pipectl plugin`: a plugin is created, checked and pushed to a registry."""

import asyncio
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipecd.commandline.main import run
from pipecd.config.piped import PluginSpec
from pipecd.pipectl.cli import tree
from pipecd.piped.pluginhost.host import PluginDownloads
from pipecd.wire.program_store import host_platform
from servers.registry import OciRegistry

Shown = tuple[int, str, str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> "Typed":
    return Typed(capsys)


class Typed:
    """Types command lines."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str | Path) -> Shown:
        code = run(tree(), ["plugin", *map(str, words)])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err


@pytest.mark.slow
def test_a_new_plugin_works_and_its_tests_pass(typed: Typed, tmp_path: Path) -> None:
    place = tmp_path / "made"
    code, out, _ = typed("init", "tcp-check", "--dir", place)
    assert code == 0
    assert "is a plugin with the stage TCP_CHECK" in out
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    # A package of our name on a public index is not ours, so nothing may resolve it there.
    assert project["dependencies"] == []
    assert "pip install pipecd-VERSION-py3-none-any.whl" in (place / "README.md").read_text()
    assert project["entry-points"]["pipecd.plugins"] == {
        "tcp-check": "pipecd_tcp_check.plugin:TcpCheckPlugin"
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "error_text"),
    [
        pytest.param("Tcp", "'Tcp' cannot be the name of a plugin; use small letters", id="a capital letter"),
        pytest.param("a--b", "cannot be the name of a plugin", id="two dashes"),
        pytest.param("../x", "cannot be the name of a plugin", id="a path"),
        pytest.param("taken", "is not empty; name another directory with --dir", id="a directory that is in use"),
    ],
)  # fmt: skip
def test_init_refuses(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error_text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    code, _, err = typed("init", name)
    assert code == 1
    assert error_text in err


PLUGIN = f"""#!{sys.executable}
from pipecd.sdk import *

class Odd(DeploymentPlugin, PreviewPlugin):
    stages = (Stage("ODD"),) * {{count}}

    async def versions(self, plan):
        return [Version({{version!r}})]

    async def quick_sync(self, *, rollback):
        return [PlannedStage("ODD")]

    async def preview(self, change):
        return [Preview({{target!r}}, "nothing")]

    async def execute(self, stage):
        stage.log.info(str(stage.options(Spec)))
        return StageResult.succeeded()

serve(Odd)
"""


def program(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plugin"
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_a_plugin_in_order_passes(typed: Typed, tmp_path: Path) -> None:
    path = program(tmp_path, PLUGIN.format(count=1, version="1", target="dev"))
    entry = tmp_path / "entry.yaml"
    entry.write_text("deployTargets:\n- name: dev\n")
    code, out, _ = typed("check", "--run", "ODD={}", "--entry-file", entry, "--", path)
    assert code == 0
    verdicts = {line[8:].partition(":")[0]: line[:8].strip() for line in out.splitlines()}
    assert verdicts["it runs ODD"] == verdicts["it previews a change"] == "ok"
    assert verdicts.pop("it reports the live state") == "skipped"
    assert set(verdicts.values()) == {"ok"}


@pytest.mark.slow
def test_every_fault_is_reported(typed: Typed, tmp_path: Path) -> None:
    path = program(tmp_path, PLUGIN.format(count=2, version="", target="elsewhere"))
    code, out, err = typed("check", "--", path)
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("FAILED")]
    assert failed == [
        "FAILED  it lists its stages: it lists ODD more than once",
        "FAILED  it determines versions: one of the versions is empty",
        "FAILED  it previews a change: it previews elsewhere, which was not requested",
    ]
    assert "3 of the checks failed" in err


@pytest.mark.slow
def test_a_program_that_ends_without_a_word_is_reported(typed: Typed) -> None:
    code, out, _ = typed("check", "--", "/bin/false")
    assert code == 1
    assert "FAILED  it answers on its port: it exited at once; it wrote nothing\n" in out


@pytest.mark.slow
def test_a_program_that_is_no_plugin_is_reported(typed: Typed, tmp_path: Path) -> None:
    path = program(tmp_path, "#!/bin/sh\necho I am no plugin\n")
    code, out, _ = typed("check", "--", path)
    assert code == 1
    assert out == (
        "FAILED  it refuses to start without its flags: it ends with exit code 0\n"
        "FAILED  it refuses an entry that is not JSON: it ends with exit code 0\n"
        "FAILED  it answers on its port: it exited at once; it wrote:\nI am no plugin\n"
    )


NEEDS_A_PATH = f"""#!{sys.executable}
from pipecd.sdk import *

class Folder(Spec):
    path: str

class Copy(StagePlugin):
    stages = (Stage("COPY"),)
    config = PluginConfig(name="copy", piped=Folder)

    async def execute(self, stage):
        return StageResult.succeeded()

serve(Copy)
"""


@pytest.mark.slow
def test_a_plugin_that_needs_settings_is_reported_with_the_flag_for_them(
    typed: Typed, tmp_path: Path
) -> None:
    code, out, err = typed("check", "--", program(tmp_path, NEEDS_A_PATH))
    assert (code, "path: must be set" in out) == (1, True)
    assert "if it needs config or deployTargets, name them with --entry-file" in err


DYING = f"""#!{sys.executable}
import os
from pipecd.sdk import *

class Dying(StagePlugin):
    stages = (Stage("DIE"),)

    async def execute(self, stage):
        os._exit(3)

serve(Dying)
"""


@pytest.mark.slow
def test_a_plugin_that_dies_is_reported(typed: Typed, tmp_path: Path) -> None:
    code, out, err = typed("check", "--run", "DIE", "--", program(tmp_path, DYING))
    verdicts = {line[8:].partition(":")[0]: line[:8].strip() for line in out.splitlines()}
    assert (code, "Traceback" in err) == (1, False)
    assert verdicts["it lists its stages"] == "ok"
    assert verdicts["it runs DIE"] == verdicts["it stops on SIGTERM"] == "FAILED"
    assert "it stops on SIGTERM: it ended before, with exit code 3" in out


INSTALLING = f"""#!{sys.executable}
from pipecd.sdk import *

class Installing(StagePlugin):
    stages = (Stage("USE"),)

    async def prepare(self, start):
        await start.tool("helm", "3.0.0", "exit 1")

    async def execute(self, stage):
        return StageResult.succeeded()

serve(Installing)
"""


@pytest.mark.slow
def test_a_plugin_that_installs_a_tool_gets_the_given_one(typed: Typed, tmp_path: Path) -> None:
    path = program(tmp_path, INSTALLING)
    code, out, _ = typed("check", "--", path)
    assert code == 1
    assert "--tool helm=PATH" in out
    code, out, _ = typed("check", "--tool", f"helm={sys.executable}", "--", path)
    assert code == 0, out


@pytest.mark.parametrize(
    ("words", "error_text"),
    [
        pytest.param(["--tool", "helm", "--", "true"], "invalid tool: helm; write NAME=PATH", id="a tool without a path"),
        pytest.param(["--tool", "helm=/nowhere", "--", "true"], "there is no file /nowhere", id="a tool that is not there"),
        pytest.param(["--run", "X={", "--", "true"], "--run X={: the options are not JSON", id="options that are not JSON"),
        pytest.param(["--entry-file", "/nowhere", "--", "true"], "cannot read /nowhere", id="an entry that is not there"),
        pytest.param(["--", "no-such-program"], "the program 'no-such-program' was not found", id="a program that is not there"),
    ],
)  # fmt: skip
def test_check_refuses(typed: Typed, words: list[str], error_text: str) -> None:
    code, _, err = typed("check", *words)
    assert code == 1
    assert error_text in err


async def test_piped_runs_a_pushed_plugin(
    typed: Typed, registry: OciRegistry, tmp_path: Path
) -> None:
    path = program(tmp_path, "#!/bin/sh\n")
    files = f"{'/'.join(host_platform())}={path},plan9/386={path}"
    where = ("--registry", registry.host, "--repository", "team/odd", "--tag", "v1")
    code, out, err = await asyncio.to_thread(typed, "push", "--files", files, *where)
    assert code == 0, err
    spec = PluginSpec(name="odd", url=out.strip())
    assert (await PluginDownloads(tmp_path / "plugins").program(spec)).read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("files", "error_text"),
    [
        pytest.param("linux/amd64", "invalid file format: linux/amd64", id="no path"),
        pytest.param("linux=x", "invalid platform format: linux", id="no architecture"),
        pytest.param("linux/arm/v7=x", "invalid platform format: linux/arm/v7", id="a variant"),
        pytest.param("linux/amd64=nowhere", "there is no file nowhere", id="a missing file"),
    ],
)  # fmt: skip
def test_push_refuses(typed: Typed, files: str, error_text: str) -> None:
    where = ("--registry", "localhost:1", "--repository", "r", "--tag", "t")
    code, _, err = typed("push", "--files", files, *where)
    assert code == 1
    assert error_text in err
