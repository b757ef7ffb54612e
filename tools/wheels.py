# SPDX-License-Identifier: Apache-2.0
"""The locked wheels of a program, for each Python that it shall run on."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# What runs on any glibc of the last years: the newest one listed is that of Debian 10 and RHEL 8.
_GLIBC = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
_LEGACY = ("manylinux2014", "manylinux2010", "manylinux1")
# A package of a lock file: name, version, marker, then its hashes and the packages that need it.
_PACKAGE = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^ ]+)(?: ; (?P<marker>.*?))? \\$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NEEDED_BY = re.compile(r"^ +#(?: via|  ) ([\w.-]+)(?: \(.*\))?$")


@dataclass
class Locked:
    """A package of a lock file."""

    name: str
    version: str
    marker: str
    hashes: list[str]
    needed_by: list[str]


def read_lock(text: str) -> dict[str, Locked]:
    """Returns the packages of a lock file by name."""
    packages: dict[str, Locked] = {}
    current: Locked | None = None
    for line in text.splitlines():
        if match := _PACKAGE.match(line):
            current = Locked(match["name"], match["version"], match["marker"] or "", [], [])
            packages[current.name] = current
        elif current is not None and (found := _HASH.search(line)):
            current.hashes.append(found[1])
        elif current is not None and (needed := _NEEDED_BY.match(line)):
            current.needed_by.append(needed[1])
    return packages


def packages_of(source: Path, extras: Iterable[str]) -> set[str]:
    """The packages that a program with these extras needs, by the lock file of the source tree."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    requirements = [Requirement(line) for line in wanted]
    locked = read_lock((source / "requirements" / "full.txt").read_text())
    needs: dict[str, set[str]] = {name: set() for name in locked}
    for package in locked.values():
        for needing in set(package.needed_by) & locked.keys():
            needs[needing].add(package.name)
    found = set[str]()
    waiting: list[str] = [canonicalize_name(requirement.name) for requirement in requirements]
    # An extra of a package is needed by that package in the lock file too: psycopg-binary.
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs[name]
    return found


def download(
    source: Path, cache: Path, machine: str, pythons: Iterable[str] = PYTHONS
) -> dict[str, list[Path]]:
    """Returns all locked wheels by version of Python; they are downloaded once."""
    lock = (source / "requirements" / "full.txt").read_text()
    places = {version: cache / "wheels" / machine / version for version in pythons}
    places = {version: place / _digest(lock, version) for version, place in places.items()}
    with ThreadPoolExecutor() as threads:
        list(threads.map(partial(_download, lock), places.values()))
    found = {version: sorted(place.glob("*.whl")) for version, place in places.items()}
    locked = read_lock(lock)
    for wheel in (wheel for wheels in found.values() for wheel in wheels):
        if hashlib.sha256(wheel.read_bytes()).hexdigest() not in locked[name_of(wheel)].hashes:
            sys.exit(f"{wheel} is not what the lock file says: remove it")
    return found


def _digest(lock: str, version: str) -> str:
    return hashlib.sha256(requirements_for(lock, version).encode()).hexdigest()[:16]


def _download(lock: str, directory: Path) -> None:
    if directory.exists():
        return
    version, machine = directory.parent.name, directory.parent.parent.name
    unfinished = directory.with_name(f"{directory.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    requirements = unfinished / "requirements.txt"
    requirements.write_text(requirements_for(lock, version))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--implementation", "cp"]
    command += ["--python-version", version, "--dest", str(unfinished), "-r", str(requirements)]
    for tag in (*(f"manylinux_{glibc}" for glibc in _GLIBC), *_LEGACY):
        command += ["--platform", f"{tag}_{machine}"]
    subprocess.run(command, check=True)
    try:
        unfinished.rename(directory)
    except OSError:
        # Another process has downloaded the same meanwhile.
        if not directory.exists():
            raise
        shutil.rmtree(unfinished)


def requirements_for(lock: str, version: str) -> str:
    """The lock file for a version of Python on Linux.

    pip would decide by the Python that it runs on. A package that some patch release needs is taken
    for all.
    """
    environment = {
        "python_version": version,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    lines: list[str] = []
    applies = True
    for line in lock.splitlines():
        if match := _PACKAGE.match(line):
            marker = Marker(match["marker"]) if match["marker"] else None
            applies = marker is None or any(
                marker.evaluate({**environment, "python_full_version": f"{version}.{patch}"})
                for patch in (0, 99)
            )
            line = f"{match['name']}=={match['version']} \\"  # noqa: PLW2901
        if applies:
            lines.append(line)
    return "\n".join(lines) + "\n"


def name_of(wheel: Path) -> str:
    return canonicalize_name(parse_wheel_filename(wheel.name)[0])


def select(wheels: Iterable[Path], names: set[str]) -> list[Path]:
    """The wheels of the packages with these names."""
    return [wheel for wheel in wheels if name_of(wheel) in names]


def unpack(wheel: Path, site: Path) -> None:
    """Installs the modules of a wheel into a directory; scripts and data files are left out."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            name = info.filename
            top, _, rest = name.partition("/")
            if top.endswith(".data"):
                kind, _, name = rest.partition("/")
                if kind not in ("purelib", "platlib"):
                    continue
            if name.endswith("/"):
                continue
            target = site / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(info))
            target.chmod(0o755 if target.suffix == ".so" else 0o644)
