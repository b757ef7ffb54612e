# SPDX-License-Identifier: Apache-2.0
"""Generates the Python code of every .proto file under src/pipecd/proto; `--check` only compares."""

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(into: Path) -> None:
    protos = sorted(str(p) for p in (SRC / "pipecd/proto").rglob("*.proto"))
    well_known = str(resources.files("grpc_tools") / "_proto")
    arguments = [
        "protoc",
        f"-I{SRC}",
        f"-I{well_known}",
        f"--python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--grpc_python_out={into}",
        f"--mypy_grpc_out=quiet:{into}",
        *protos,
    ]
    if protoc.main(arguments) != 0:
        sys.exit("protoc refused a .proto file; its message is above")


def generated_files(under: Path) -> dict[str, bytes]:
    found = {}
    for pattern in GENERATED:
        for path in (under / "pipecd/proto").rglob(pattern):
            found[str(path.relative_to(under))] = path.read_bytes()
    return found


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
    for name in generated_files(SRC):
        (SRC / name).unlink()
    generate(SRC)


if __name__ == "__main__":
    main()
