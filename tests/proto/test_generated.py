# SPDX-License-Identifier: Apache-2.0
"""The committed code is generated from the .proto files."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools" / "regenerate_proto.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_code_is_up_to_date(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # The plugins of protoc must be found without the environment being active.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert tool.differences() == []


@pytest.mark.slow
def test_stale_missing_and_left_over_files_are_named_and_fixed(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "src/pipecd/proto", tmp_path / "pipecd/proto")
    monkeypatch.setattr(tool, "SRC", tmp_path)
    stale = tmp_path / "pipecd/proto/rules_pb2.pyi"
    stale.write_text(stale.read_text() + "x = 1\n")
    (tmp_path / "pipecd/proto/left_over_pb2.py").touch()
    (tmp_path / "pipecd/proto/service/api_pb2.py").unlink()
    assert tool.differences() == [
        "pipecd/proto/left_over_pb2.py",
        "pipecd/proto/rules_pb2.pyi",
        "pipecd/proto/service/api_pb2.py",
    ]
    tool.update()
    assert tool.differences() == []
