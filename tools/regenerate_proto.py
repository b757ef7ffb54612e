# SPDX-License-Identifier: Apache-2.0
"""Generates the Python code of the .proto files under src/pipecd/proto; `--check` only compares."""

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
        *(f"--plugin={name}={_beside_python(name)}" for name in PLUGINS),
        f"--python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--grpc_python_out={into}",
        f"--mypy_grpc_out=quiet:{into}",
        *protos,
    ]
    if cast("Any", protoc).main(arguments) != 0:
        sys.exit("protoc refused a .proto file; its message is above")


def _beside_python(program: str) -> Path:
    """The plugins are installed beside the interpreter, which need not be on PATH."""
    found = Path(sys.executable).parent / program
    if not found.exists():
        sys.exit(f"{found} is missing, run `make proto` to install what is needed")
    return found


def generated_files(under: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for pattern in GENERATED:
        for path in (under / "pipecd/proto").rglob(pattern):
            found[str(path.relative_to(under))] = path.read_bytes()
    return found


def replace() -> None:
    """Writes what changed only, so that programs that run meanwhile never miss a file."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        wanted, present = generated_files(Path(scratch)), generated_files(SRC)
    for name in present.keys() - wanted.keys():
        (SRC / name).unlink()
    for name, content in wanted.items():
        if present.get(name) != content:
            (SRC / name).write_bytes(content)


def differences() -> list[str]:
    """The generated files that are missing, stale or left over."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        wanted = generated_files(Path(scratch))
    present = generated_files(SRC)
    return sorted(n for n in wanted.keys() | present.keys() if wanted.get(n) != present.get(n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="fail when the committed code is stale"
    )
    if parser.parse_args().check:
        if stale := differences():
            sys.exit("stale generated code, run `make proto`:\n  " + "\n  ".join(stale))
        return
    replace()


if __name__ == "__main__":
    main()
