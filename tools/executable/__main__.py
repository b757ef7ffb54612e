# SPDX-License-Identifier: Apache-2.0
"""Runs the program of this file: unpacks it once into a directory of the user, and starts it there.

Old versions of Python read this file too, to say that they are too old.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

UNUSED_DAYS = 30
# Every process of the environment runs this when it starts, and holds the lock until it ends.
IN_USE, LOCK = "pipecd_in_use", "in-use"
HOLD_LOCK = f"""\
import fcntl, os, sys

try:
    lock = open(os.path.join(sys.prefix, {LOCK!r}))
    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
except OSError:
    pass
"""
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def main() -> None:
    with zipfile.ZipFile(sys.argv[0]) as content:
        release = json.loads(content.read("release.json").decode())
        check_machine(release)
        base = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
        key = hashlib.sha256(f"{release['digest']} {base}".encode()).hexdigest()[:16]
        target = directory_of_programs() / f"{release['program']}-{release['version']}-{key}"
        if not target.is_dir():
            install(content, release, base, target)
            remove_unused(target, release["program"])
    check_owner(target)
    os.utime(str(target))
    python, program = str(target / "bin" / "python"), str(target / "bin" / release["program"])
    os.execv(python, [python, "-I", program, *sys.argv[1:]])


def check_machine(release: "dict[str, Any]") -> None:
    if VERSION not in release["wheels"]:
        versions = ", ".join(release["wheels"])
        fail(
            f"it needs Python {versions}, and this is Python {VERSION} ({sys.executable}): "
            f"start it with another one, such as `python3.12 {sys.argv[0]}`"
        )
    libc = sysconfig.get_config_var("SOABI") or sys.platform
    machine = os.uname().machine
    if sys.platform != "linux" or machine != release["machine"] or "musl" in libc:
        fail(f"it is for Linux with glibc on {release['machine']}, and this is {libc} on {machine}")


def directory_of_programs() -> Path:
    chosen = os.environ.get("PIPECD_EXECUTABLES")
    if chosen:
        return Path(chosen).absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "pipecd" / "executables"


def install(content: zipfile.ZipFile, release: "dict[str, Any]", base: Path, target: Path) -> None:
    """Makes a virtual environment of the wheels; another process may do so at the same time."""
    partial = target.parent
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=str(target.parent)))
        site = partial / "lib" / f"python{VERSION}" / "site-packages"
        site.mkdir(parents=True)
        (partial / "bin").mkdir()
        (partial / "bin" / "python").symlink_to(base)
        settings = f"home = {base.parent}\ninclude-system-site-packages = false\n"
        (partial / "pyvenv.cfg").write_text(settings)
        for wheel in release["wheels"][VERSION]:
            with zipfile.ZipFile(io.BytesIO(content.read(f"wheels/{wheel}"))) as packed:
                packed.extractall(str(site))
        (partial / LOCK).touch()
        (site / f"{IN_USE}.py").write_text(HOLD_LOCK)
        (site / f"{IN_USE}.pth").write_text(f"import {IN_USE}\n")
        module, _, function = release["entry"].partition(":")
        (partial / "bin" / release["program"]).write_text(
            f"from {module} import {function}\n{function}()\n"
        )
    except (OSError, zipfile.BadZipFile) as error:
        if partial != target.parent:
            shutil.rmtree(str(partial), ignore_errors=True)
        fail(
            f"it cannot be unpacked into {target.parent} ({error}): set PIPECD_EXECUTABLES to a "
            "directory with room that this user may write, or download the file again"
        )
    try:
        partial.rename(target)
    except OSError:
        shutil.rmtree(str(partial), ignore_errors=True)
        if not target.is_dir():
            raise


def check_owner(target: Path) -> None:
    """Code of other users is not run."""
    status = target.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        fail(f"{target} belongs to another user or is writable by others: remove it")


def remove_unused(target: Path, program: str) -> None:
    """Removes versions that were not started for a while, and of which no process runs."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for directory in target.parent.glob(f"{program}-*"):
        if directory != target and directory.stat().st_mtime < oldest and not is_used(directory):
            shutil.rmtree(str(directory), ignore_errors=True)


def is_used(directory: Path) -> bool:
    try:
        with (directory / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        # The installation was interrupted.
        return False
    except OSError:
        return True
    return False


def fail(message: str) -> None:
    sys.exit(f"{Path(sys.argv[0]).name} cannot start: {message}")


main()
