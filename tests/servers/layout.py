# SPDX-License-Identifier: Apache-2.0
"""Containers of a layout, run as processes: a directory stands for the root of a container."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from servers.polling import eventually
from servers.server import free_ports

PROGRAMS = Path(sys.executable).parent
# Directories of containers that belong to the container here too.
PLACES = ("/etc/pipe", "/home/pipe", "/var/lib/pipecd")
APPLICATION = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with: {run: echo deployed}
"""


class Container:
    """Runs the command of a container on this machine, with its files and its environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        root.mkdir(parents=True)

    @property
    def home(self) -> Path:
        """The directory that commands run in."""
        return self.root / "home" / "pipecd"

    def here(self, text: str) -> str:
        """The text with paths of the container replaced by those on this machine."""
        for place in PLACES:
            text = text.replace(place, f"{self.root}{place}")
        return text

    def write(self, place: str, text: str) -> Path:
        path = Path(self.here(place))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.here(text))
        return path

    @asynccontextmanager
    async def started(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> AsyncIterator[Path]:
        """Runs a command in the home directory; it must end cleanly on SIGTERM. Yields its log."""
        home = self.home
        for place in (home, self.root / "home" / "piped", self.root / "var" / "lib" / "pipecd"):
            place.mkdir(parents=True, exist_ok=True)
        variables = {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "HOME": str(home),
            **{name: self.here(text) for name, text in (environment or {}).items()},
        }
        if list(words[:2]) == ["/usr/bin/tini", "--"]:
            words = words[2:]
        with self.log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(self.here(word) for word in words),
                env=variables, cwd=home, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            yield self.log
            assert process.returncode is None, self.log.read_text()
        finally:
            # Shells of entry points pass no signals on: the whole group is stopped, as by an engine.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 60)


def server_flags(port: int) -> list[str]:
    """Flags with which a server of a layout keeps to loopback and to free ports."""
    names = ("piped-api", "web-api", "http", "api", "admin", "envoy-authz")
    ports = [f"--{n}-port={p}" for n, p in zip(names, free_ports(len(names)), strict=True)]
    return ["--host=127.0.0.1", f"--port={port}", *ports]


async def output_of(program: str, *words: str, directory: Path | None = None) -> str:
    """Runs one of our programs; returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        str(PROGRAMS / program), *words, stdout=asyncio.subprocess.PIPE, cwd=directory
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, (program, words)
    return out.decode()


def create_repository(directory: Path) -> Path:
    (directory / "web").mkdir(parents=True)
    (directory / "web" / "app.pipecd.yaml").write_text(APPLICATION)
    identity = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(directory), *words], check=True)
    return directory


class StartPiped(Protocol):
    """Starts the piped of a layout with a configuration."""

    def __call__(self, configuration: str) -> AbstractAsyncContextManager[Any]: ...


class Pipectl:
    """pipectl with an API key of a control plane on loopback."""

    def __init__(self, port: int, key: str) -> None:
        self.connection = ["--address", f"localhost:{port}", "--insecure", "--api-key", key.strip()]

    async def __call__(self, line: str) -> Any:
        return json.loads(await output_of("pipectl", *line.split(), *self.connection))

    async def deploy_with(self, start: StartPiped, directory: Path) -> None:
        """Registers a piped and starts it; an application of it is deployed with success."""
        repository, file = create_repository(directory / "apps"), directory / "piped.yaml"
        id = (await self(f"piped register --name dev --config-out {file}"))["id"]
        repositories = f"[{{repoID: apps, remote: {repository}, branch: main}}]"
        text = file.read_text().replace("repositories: []", f"repositories: {repositories}")
        async with start(text):
            await self.deploy(id)

    async def deploy(self, piped: str, repository: str = "apps") -> None:
        """Adds an application when the piped uses its repository; it is deployed with success."""

        async def has_reported() -> bool:
            reported = (await self(f"piped get --piped-id {piped}")).get("repositories", [])
            return repository in [each["id"] for each in reported]

        await eventually(has_reported, within=100)
        words = f"--app-name web --piped-id {piped} --repo-id {repository} --app-dir web"
        added = await self(f"application add {words} --output json")
        application = added["application_id"]

        async def has_succeeded() -> bool:
            listed = await self(f"deployment list --app-id {application}")
            return [d.get("status") for d in listed.get("deployments", [])] == [4]

        await eventually(has_succeeded, within=100)


async def until_ready(log: Path) -> None:
    """Waits for the server of a log; when it is not ready in time the log is the error."""
    try:
        await eventually(lambda: "control plane ready" in log.read_text(), within=100)
    except TimeoutError:
        text = await asyncio.to_thread(log.read_text)
        raise AssertionError(f"the server is not ready:\n{text[-4000:]}") from None


async def first_key(configuration: Path, project: str) -> str:
    """The first API key, made by the operator."""
    return await output_of(
        "pipecd", "api-key", "add", "--project", project, "--name", "first",
        "--role", "READ_WRITE", "--config-file", str(configuration),
        directory=configuration.parent,
    )  # fmt: skip


def programs_on_loopback(directory: Path, port: int) -> str:
    """A PATH with a `pipecd` that listens on loopback and free ports, whatever the flags say."""
    directory.mkdir()
    [pages, admin] = free_ports(2)
    (directory / "pipecd").write_text(
        f"""#!/bin/sh
case "$1" in
server) set -- "$@" {" ".join(server_flags(port))} ;;
ops) set -- "$@" --host=127.0.0.1 --http-port={pages} --admin-host=127.0.0.1 --admin-port={admin} ;;
esac
exec {PROGRAMS}/pipecd "$@"
"""
    )
    (directory / "pipecd").chmod(0o755)
    for name in ("piped", "launcher"):
        (directory / name).write_text(
            f'#!/bin/sh\nexec {PROGRAMS}/{name} "$@" --admin-host=127.0.0.1 --admin-port=0 --insecure\n'
        )
        (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def create_bucket(name: str) -> None:
    """Creates a bucket in AWS of this process, unless there is one."""
    import boto3

    client = boto3.client("s3")
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
        )
