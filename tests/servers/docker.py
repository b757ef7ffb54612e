# SPDX-License-Identifier: Apache-2.0
"""A Docker daemon of our own, and images of the programs of this machine.

The images have the names of the public ones that a Compose file uses, which no test downloads.
"""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

START_SECONDS = 60
# `docker compose` where Compose is a program of its own, which cannot wait for healthy containers.
COMPOSE_PROGRAM = """\
if [ "$1" = compose ]; then
    shift
    waits=
    for word in "$@"; do
        shift
        if [ "$word" = --wait ]; then waits=1; else set -- "$@" "$word"; fi
    done
    docker-compose "$@" || exit
    [ -n "$waits" ] || exit 0
    for container in $(docker-compose ps -q); do
        health='{{if .State.Health}}{{.State.Health.Status}}{{end}}'
        until case $(docker inspect -f "$health" "$container") in ""|healthy) ;; *) false ;; esac
        do sleep 0.5; done
    done
    exit
fi
"""


class Docker:
    """The `docker` of this machine, connected to a daemon of our own."""

    def __init__(self, program: str, directory: Path) -> None:
        self.directory = directory
        programs = directory / "bin"
        programs.mkdir()
        plugin = subprocess.run([program, "compose", "version"], capture_output=True, check=False)
        is_program = plugin.returncode != 0 and shutil.which("docker-compose") is not None
        script = COMPOSE_PROGRAM if is_program else ""
        for name, text in {"docker": f'{script}exec {program} "$@"', "sudo": 'exec "$@"'}.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        self.has_compose = is_program or plugin.returncode == 0
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{directory}/sock",
        }

    def __call__(self, *words: str) -> str:
        return self._run(["docker", *words], directory=Path("/"))

    def run(self, block: str, directory: Path, variables: Mapping[str, str] | None = None) -> str:
        """Runs commands of a page in a shell; the first one that fails ends it, and the test."""
        shell = ["bash", "-eo", "pipefail", "-c", block]
        return self._run(shell, directory=directory, variables=variables)

    def _run(
        self, words: Sequence[str], *, directory: Path, variables: Mapping[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            words, cwd=directory, env={**self.environment, **(variables or {})},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr[-3000:])
        return done.stdout

    def is_up(self) -> bool:
        listed = subprocess.run(
            ["docker", "ps"], env=self.environment, capture_output=True, check=False
        )
        return listed.returncode == 0

    def create_image(
        self,
        name: str,
        programs: Sequence[str],
        settings: Sequence[str],
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Creates an image of programs of this machine with their libraries, and of files.

        Programs are in /usr/bin; the settings are lines of a Dockerfile.
        """
        archive = self.directory / "image.tar"
        with tarfile.open(archive, "w", dereference=True) as packed:
            for program in programs:
                packed.add(program, f"usr/bin/{Path(program).name}")
            for library in sorted({path for program in programs for path in libraries_of(program)}):
                packed.add(library, library[1:])
            for path, text in (files or {}).items():
                info = tarfile.TarInfo(path[1:])
                info.size, info.mode = len(text.encode()), 0o755
                packed.addfile(info, BytesIO(text.encode()))
            for place in ("home", "tmp"):
                info = tarfile.TarInfo(place)
                info.type, info.mode = tarfile.DIRTYPE, 0o1777
                packed.addfile(info)
        lines = ("ENV PATH=/usr/bin HOME=/home", *settings)
        changes = [word for line in lines for word in ("--change", line)]
        self("import", *changes, str(archive), name)
        archive.unlink()


def libraries_of(program: str) -> list[str]:
    """The shared libraries of a program, none if it is static."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return re.findall(r"(/\S+) \(0x", listed.stdout)


@contextmanager
def docker_daemon() -> Iterator[Docker]:
    """Runs a daemon; skips the test, with the reason, where none can run."""
    # The daemon is in a directory that is on the PATH of root only.
    path = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"
    program, dockerd = (shutil.which(name, path=path) for name in ("docker", "dockerd"))
    if os.getuid() != 0 or program is None or dockerd is None:
        pytest.skip("needs root, docker and dockerd")
    # Paths of sockets are short.
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    docker = Docker(program, directory)
    if not docker.has_compose:
        shutil.rmtree(directory)
        pytest.skip("needs docker-compose, or the plugin compose of docker")
    places = [f"--data-root={directory}/data", f"--exec-root={directory}/exec"]
    command = [dockerd, *places, f"--pidfile={directory}/pid"]
    log = directory / "log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [*command, "-H", docker.environment["DOCKER_HOST"]], stdout=output, stderr=output
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not docker.is_up():
            if daemon.poll() is not None or time.monotonic() > end:
                pytest.skip(f"the Docker daemon does not start: {log.read_text()[-300:]}")
            time.sleep(0.5)
        yield docker
    finally:
        daemon.terminate()
        daemon.wait(60)
        shutil.rmtree(directory, ignore_errors=True)
