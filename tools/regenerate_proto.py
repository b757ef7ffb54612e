# SPDX-License-Identifier: Apache-2.0
"""Generates the Python code of the .proto files in src/pipecd/proto; `--check` only compares it."""

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any, cast

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(into: Path) -> None:
    protos = sorted(str(p) for p in (SRC / "pipecd/proto").rglob("*.proto"))
    well_known = str(resources.files("grpc_tools") / "_proto")
    arguments = [
        "protoc",
        f"-I{SRC}",
        f"-I{well_known}",
        *(f"--plugin={name}={_plugin_path(name)}" for name in PLUGINS),
        f"--python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--grpc_python_out={into}",
        f"--mypy_grpc_out=quiet:{into}",
        *protos,
    ]
    if cast("Any", protoc).main(arguments) != 0:
        sys.exit("protoc failed, see its errors above")


def _plugin_path(program: str) -> Path:
    """Returns the path of a protoc plugin, which pip installs next to the interpreter."""
    path = Path(sys.executable).parent / program
    if not path.exists():
        sys.exit(f"{path} does not exist, run `make proto` to install it")
    return path


def generated_files(under: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for pattern in GENERATED:
        for path in (under / "pipecd/proto").rglob(pattern):
            files[str(path.relative_to(under))] = path.read_bytes()
    return files


def update() -> None:
    """Writes only changed files, so that running programs never miss one."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        expected, present = generated_files(Path(scratch)), generated_files(SRC)
    for name in present.keys() - expected.keys():
        (SRC / name).unlink()
    for name, content in expected.items():
        if present.get(name) != content:
            (SRC / name).write_bytes(content)


def differences() -> list[str]:
    """Returns the generated files that are missing, stale or obsolete."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        expected = generated_files(Path(scratch))
    present = generated_files(SRC)
    return sorted(n for n in expected.keys() | present.keys() if expected.get(n) != present.get(n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed code is stale")
    if parser.parse_args().check:
        if stale := differences():
            sys.exit("stale generated code, run `make proto`:\n  " + "\n  ".join(stale))
        return
    update()


if __name__ == "__main__":
    main()
