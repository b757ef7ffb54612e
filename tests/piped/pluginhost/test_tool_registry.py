# SPDX-License-Identifier: Apache-2.0
"""Tools are installed once by their installation script."""

import asyncio
from pathlib import Path

import pytest

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.pluginhost.tool_registry import Tool, ToolRegistry

SCRIPT = """
echo run >> {{ .TmpDir }}/../runs
echo "{{ .Name }} {{ .Version }} {{ .Os }}" > {{ .OutPath }}
test -n "{{ .Arch }}"
"""


async def test_concurrent_requests_share_one_installation(tmp_path: Path) -> None:
    tools = ToolRegistry(tmp_path / "tools")
    tool = Tool("kubectl", "1.30.0", SCRIPT)
    first, second = await asyncio.gather(tools.install(tool), tools.install(tool))
    assert first == second == tmp_path / "tools" / "kubectl-1.30.0"
    assert first.read_text() == "kubectl 1.30.0 linux\n"
    assert first.stat().st_mode & 0o111
    assert (tmp_path / "tools" / "runs").read_text() == "run\n"


async def test_an_installed_tool_is_not_installed_again(tmp_path: Path) -> None:
    (tmp_path / "helm-3.1").write_text("mine")
    path = await ToolRegistry(tmp_path).install(Tool("helm", "3.1", "exit 1"))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("tool", "kind", "error"),
    [
        pytest.param(Tool("t", "1", "echo no network >&2; exit 4"), PipecdError, "installing t 1 ended with 4: no network", id="the script fails"),
        pytest.param(Tool("t", "1", "true"), PipecdError, "left no program at OutPath", id="the script brings nothing"),
        pytest.param(Tool("../t", "1", "true"), UserMistake, "cannot be the name or version", id="a name that leads elsewhere"),
        pytest.param(Tool("t", "1", "{{ .Nonsense }}"), UserMistake, "Nonsense", id="a script with a mistake"),
    ],
)  # fmt: skip
async def test_a_tool_that_cannot_be_installed(
    tmp_path: Path, tool: Tool, kind: type[PipecdError], error: str
) -> None:
    with pytest.raises(kind, match=error):
        await ToolRegistry(tmp_path).install(tool)
    assert not (tmp_path / "t-1").exists()
