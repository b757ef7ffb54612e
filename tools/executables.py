# SPDX-License-Identifier: Apache-2.0
"""Builds each program as one executable file: its wheels, and a start that unpacks them.

A file needs nothing but Python; it has the wheels of each version of Python that it supports.
"""

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import wheels

START = Path(__file__).parent / "executable" / "__main__.py"
# Go's names, which the templates of release URLs use.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
# The file begins with a script for the shell; Python skips what precedes an archive. The table of
# contents is the end of an archive: Python reads a file without one as source, and shows the first
# line that is wrong.
_HEAD = """\
#!/bin/sh
: \\"If Python stops here, this file is incomplete: download it again.\\"
size=$(wc -c < "$0")
expected={size:<12}
if [ "$size" -ne "$expected" ]; then
  echo "${{0##*/}} cannot start: it has $size of $expected bytes, download it again" >&2
  exit 1
fi
exec python3 "$0" "$@"
"""
PIPED_EXTRAS = ("aws", "cloudrun", "tracing")
SERVER_EXTRAS = (
    "mysql",
    "postgres",
    "redis",
    "s3",
    "aws",
    "gcp",
    "cloudrun",
    "reflection",
    "tracing",
)


@dataclass(frozen=True)
class Program:
    """A program of a release."""

    name: str
    entry: str
    extras: tuple[str, ...]


PROGRAMS = (
    Program("pipecd", "pipecd.cli:main", SERVER_EXTRAS),
    Program("piped", "pipecd.cli:piped_main", PIPED_EXTRAS),
    Program("launcher", "pipecd.cli:launcher_main", PIPED_EXTRAS),
    Program("pipectl", "pipecd.pipectl.cli:main", ()),
)


def build(
    source: Path, wheel: Path, output: Path, found: dict[str, list[Path]], architecture: str
) -> None:
    """Writes the executables of one architecture."""
    version = wheel.name.split("-")[1]
    for program in PROGRAMS:
        names = wheels.packages_of(source, program.extras)
        chosen = {python: [wheel, *wheels.select(all, names)] for python, all in found.items()}
        target = output / f"{program.name}_v{version}_linux_{architecture}"
        write(target, program, version, chosen, ARCHITECTURES[architecture])


def write(
    target: Path, program: Program, version: str, chosen: dict[str, list[Path]], machine: str
) -> None:
    """Writes the executable of a program with the wheels of each version of Python."""
    files = {path.name: path for paths in chosen.values() for path in paths}
    start = START.read_bytes()
    digest = hashlib.sha256(start)
    for name in sorted(files):
        digest.update(hashlib.sha256(files[name].read_bytes()).digest())
    release = {
        "program": program.name,
        "version": version,
        "entry": program.entry,
        "machine": machine,
        "digest": digest.hexdigest(),
        "wheels": {python: sorted(path.name for path in paths) for python, paths in chosen.items()},
    }
    with target.open("wb") as file:
        file.write(_HEAD.format(size=0).encode())
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_entry("__main__.py"), start)
            archive.writestr(_entry("release.json"), json.dumps(release, indent=1))
            for name in sorted(files):
                archive.writestr(_entry(f"wheels/{name}"), files[name].read_bytes())
        size = file.tell()
        file.seek(0)
        file.write(_HEAD.format(size=size).encode())
    target.chmod(0o755)


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry whose bytes do not depend on when and where it is written."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o644 << 16
    info.create_system = 3
    return info
