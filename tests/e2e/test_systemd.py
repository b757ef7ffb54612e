# SPDX-License-Identifier: Apache-2.0
"""The systemd layout of the guide: units are verified, and their commands run as written.

Only the directories differ: those of the test stand for /etc/pipecd, /var/lib and /opt/pipecd. The
commands of the pages run in a shell; what needs systemd, its users or a package index is replaced.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from servers.pages import console_blocks
from servers.polling import eventually
from servers.server import free_port, free_ports

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
PROGRAMS = Path(sys.executable).parent
MAX_EXPOSURE = 20
ANALYZE = shutil.which("systemd-analyze")

CONTROL_PLANE = """\
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: http://localhost:{port}
  stateKey: a-long-random-text
  datastore: {{type: SQLITE, config: {{path: {root}/var/lib/pipecd/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {root}/var/lib/pipecd/files}}}}
"""
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def unit_files(directory: Path) -> list[str]:
    """Copies the units with an instance each, and the programs where they are here."""
    names: list[str] = []
    for unit in sorted(UNITS.glob("*.service")):
        name = unit.name.replace("@.", "@dev.")
        text = unit.read_text().replace("/opt/pipecd/current/bin", str(PROGRAMS))
        (directory / name).write_text(text)
        names.append(str(directory / name))
    return names


@pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")
def test_the_units_are_valid_and_hardened(tmp_path: Path) -> None:
    units = unit_files(tmp_path)
    assert len(units) == 3
    verified = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    threshold = f"--threshold={MAX_EXPOSURE}"
    for unit in units:
        subprocess.run(
            ["systemd-analyze", "security", "--offline=true", threshold, unit],
            check=True,
            capture_output=True,
        )


async def is_started(manager: socket.socket, process: asyncio.subprocess.Process) -> bool:
    """Waits as systemd does for a unit with `Type=notify`: until it serves, or has ended."""
    ready = asyncio.create_task(asyncio.get_running_loop().sock_recv(manager, 100))
    ended = asyncio.create_task(process.wait())
    await asyncio.wait([ready, ended], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not ready.done():
        ready.cancel()
        if process.returncode is None:
            process.kill()
        return False
    return ready.result() == b"READY=1"


class Machine:
    """A directory that stands for the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etc = root / "etc" / "pipecd"
        self.etc.mkdir(parents=True)

    def here(self, text: str) -> str:
        text = text.replace("/opt/pipecd/current/bin", str(PROGRAMS))
        for directory in ("/etc/pipecd", "/var/lib"):
            text = text.replace(directory, f"{self.root}{directory}")
        return text

    def command(self, unit: str, instance: str = "") -> tuple[list[str], dict[str, str]]:
        """The command of a unit as systemd runs it, and its environment."""
        lines = (UNITS / unit).read_text().replace("%i", instance).splitlines()
        settings = [line.partition("=")[::2] for line in lines if "=" in line]
        credentials = self.root / "run" / "credentials" / unit / instance
        credentials.mkdir(parents=True, exist_ok=True)
        variables = {"CREDENTIALS_DIRECTORY": str(credentials), "PATH": os.environ["PATH"]}
        for name, value in settings:
            if name == "StateDirectory":
                (self.root / "var" / "lib" / value).mkdir(parents=True, exist_ok=True)
            elif name == "LoadCredential":
                credential, _, source = value.partition(":")
                shutil.copy(self.here(source), credentials / credential)
            elif name == "Environment":
                key, _, text = value.partition("=")
                variables[key] = self.here(text)
            elif name == "EnvironmentFile" and Path(self.here(value[1:])).exists():
                pairs = Path(self.here(value[1:])).read_text().splitlines()
                variables |= dict(pair.split("=", 1) for pair in pairs)
        [start] = [value for name, value in settings if name == "ExecStart"]
        words: list[str] = []
        for word in shlex.split(self.here(start)):
            if word.startswith("$") and not word.startswith("${"):
                words += shlex.split(variables.get(word[1:], ""))
            else:
                name = "CREDENTIALS_DIRECTORY"
                words.append(word.replace("${" + name + "}", variables[name]))
        return words, variables

    @asynccontextmanager
    async def started(self, unit: str, instance: str = "") -> AsyncIterator[Path]:
        """Runs a unit; it must end cleanly on SIGTERM. Yields the log of this run."""
        words, variables = self.command(unit, instance)
        log = self.root / f"{unit}{instance}.log"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            # Abstract, as the path of a socket may have 107 bytes only.
            name = f"pipecd-{uuid4()}"
            manager.bind(f"\0{name}")
            manager.setblocking(False)
            if "Type=notify" in (UNITS / unit).read_text().splitlines():
                variables["NOTIFY_SOCKET"] = f"@{name}"
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *words, env=variables, stdout=output, stderr=output
                )
            if "NOTIFY_SOCKET" in variables:
                assert await is_started(manager, process), log.read_text()
        try:
            yield log
            assert process.returncode is None, log.read_text()
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            code = await asyncio.wait_for(process.wait(), 60)
        assert code == 0, log.read_text()


async def output_of(program: str, *words: str, **environment: str) -> str:
    """Runs one of our programs; returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        str(PROGRAMS / program), *words, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0, (program, words)
    return out.decode()


def create_repository(directory: Path) -> None:
    (directory / "web").mkdir(parents=True)
    (directory / "web" / "app.pipecd.yaml").write_text(APPLICATION)
    identity = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(directory), *words], check=True)


def write_server_files(machine: Machine, port: int) -> None:
    """Writes what the operator writes into /etc/pipecd."""
    config = CONTROL_PLANE.format(port=port, root=machine.root)
    (machine.etc / "control-plane.yaml").write_text(config)
    (machine.etc / "encryption-key").write_text("k" * 64)
    names = ("piped-api", "web-api", "http", "api", "admin", "envoy-authz")
    ports = " ".join(f"--{n}-port={p}" for n, p in zip(names, free_ports(6), strict=True))
    flags = f"--insecure-cookie --host 127.0.0.1 --port {port} {ports}"
    first = "PIPECD_FIRST_PROJECT=shop\nPIPECD_FIRST_ADMIN_PASSWORD=hello-shop"
    (machine.etc / "server.env").write_text(f"SERVER_FLAGS={flags}\n{first}\n")


async def until_logged(log: Path, text: str) -> None:
    await eventually(lambda: text in log.read_text(), within=60)


async def test_the_layout_deploys_is_backed_up_and_restored(tmp_path: Path) -> None:
    machine, port = Machine(tmp_path / "machine"), free_port()
    write_server_files(machine, port)
    repository = tmp_path / "apps"
    create_repository(repository)
    config = str(machine.etc / "control-plane.yaml")
    async with machine.started("pipecd-server.service"):
        key = await output_of(
            "pipecd", "api-key", "add", "--project", "shop", "--name", "first",
            "--role", "READ_WRITE", "--config-file", config,
        )  # fmt: skip
        connection = ["--address", f"localhost:{port}", "--insecure", "--api-key", key.strip()]

        async def pipectl(line: str) -> Any:
            return json.loads(await output_of("pipectl", *line.split(), *connection))

        async def application_on(piped: str, unit: str) -> None:
            """Registers and starts a piped; a new application of it is deployed."""
            file = machine.etc / f"piped-{piped}.yaml"
            id = (await pipectl(f"piped register --name {piped} --config-out {file}"))["id"]
            repositories = f"[{{repoID: apps, remote: {repository}, branch: main}}]"
            text = file.read_text().replace("repositories: []", f"repositories: {repositories}")
            file.write_text(text)
            (machine.etc / f"piped-{piped}.env").write_text("PIPED_FLAGS=--insecure\n")
            async with machine.started(unit, piped):

                async def has_reported() -> bool:
                    return "repositories" in await pipectl(f"piped get --piped-id {id}")

                await eventually(has_reported, within=60)
                add = f"application add --app-name web --piped-id {id} --repo-id apps --app-dir web"
                application = (await pipectl(f"{add} --output json"))["application_id"]

                async def has_succeeded() -> bool:
                    listed = await pipectl(f"deployment list --app-id {application}")
                    return [d["status"] for d in listed.get("deployments", [])] == [4]

                await eventually(has_succeeded, within=60)

        await application_on("dev", "piped@.service")
        await application_on("prod", "piped-launcher@.service")

    # The server is stopped, so that the files are complete.
    shutil.make_archive(str(tmp_path / "backup"), "tar", machine.root / "var" / "lib" / "pipecd")
    shutil.rmtree(machine.root / "var" / "lib" / "pipecd")
    shutil.unpack_archive(tmp_path / "backup.tar", machine.root / "var" / "lib" / "pipecd")
    async with machine.started("pipecd-server.service"):
        restored = await pipectl("application list")
        assert [each["name"] for each in restored["applications"]] == ["web", "web"]


# What the pages call and this machine has not: users, systemd, an installation by pip.
REPLACED = {
    "journalctl": "",
    "systemd-sysusers": "",
    "useradd": "",
    "runuser": 'shift 3; exec "$@"',
    "python3": f"""mkdir -p "$3/bin"
for name in pipecd piped launcher pipectl; do ln -s {PROGRAMS}/$name "$3/bin/$name"; done
printf '#!/bin/sh\\n' > "$3/bin/pip"
chmod 0755 "$3/bin/pip"
""",
}


class Reader(Machine):
    """Follows pages on a machine: a shell runs their commands, and systemctl runs its units."""

    def __init__(self, root: Path, port: int) -> None:
        super().__init__(root)
        self.etc.rmdir()
        self.port, self.running = port, dict[str, AsyncExitStack]()
        self.directory, self.programs = root / "root", root / "programs"
        for place in (self.directory / ".ssh", self.programs, root / "usr" / "local" / "bin"):
            place.mkdir(parents=True)
        (self.directory / "deploy").symlink_to(UNITS.parent)
        self.socket = self.programs / "socket"
        for name, script in REPLACED.items():
            self.add_program(name, f"#!/bin/sh\n{script}\n")
        self.add_program(
            "systemctl",
            f"#!{sys.executable}\nimport socket, sys\n"
            "with socket.socket(socket.AF_UNIX) as connection:\n"
            f"    connection.connect({str(self.socket)!r})\n"
            "    connection.sendall((' '.join(sys.argv[1:]) + '\\n').encode())\n"
            "    sys.exit(connection.recv(100).decode() or None)\n",
        )

    def add_program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def here(self, text: str) -> str:
        for place in ("/etc/", "/var/lib/", "/opt/pipecd", "/usr/local/bin"):
            text = re.sub(rf"(?<![\w/.-]){place}", f"{self.root}{place}", text)
        text = re.sub(r"-[og] (pipecd|piped) ", "", text.replace("-C / ", f"-C {self.root} "))
        return text.replace("localhost:9090", f"localhost:{self.port}")

    async def run(self, block: str) -> str:
        """Runs the commands of a block; the first one that fails ends it, and the test."""
        path = f"{self.programs}:{self.root}/usr/local/bin:{PROGRAMS}:{os.environ['PATH']}"
        process = await asyncio.create_subprocess_exec(
            "sh", "-ec", self.here(block),
            env={"PATH": path, "HOME": str(self.directory)}, cwd=self.directory,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await process.communicate()
        assert process.returncode == 0, (block, errors.decode())
        return out.decode()

    async def follow(self, page: str, section: str) -> None:
        for block in console_blocks(page, section):
            await self.run(block)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one call of systemctl with an error, or with nothing."""
        line = (await reader.readline()).decode()
        try:
            await self.systemctl(*line.split())
        except (AssertionError, OSError, ValueError, KeyError) as e:
            writer.write(f"systemctl {line.strip()}: {e}"[:100].encode())
        writer.close()

    async def systemctl(self, verb: str, *words: str) -> None:
        patterns = [word for word in words if not word.startswith("--")]
        if verb in ("enable", "disable"):
            assert "--now" in words
        if verb in ("stop", "disable", "restart"):
            known = [name for name in self.running if any(fnmatch(name, p) for p in patterns)]
            for name in known:
                await self.running.pop(name).aclose()
            patterns = known if verb == "restart" else []
        for name in patterns:
            template, _, instance = name.partition("@")
            unit = f"{template}@.service" if instance else f"{template}.service"
            assert (self.root / "etc" / "systemd" / "system" / unit).exists()
            self.running[name] = AsyncExitStack()
            await self.running[name].enter_async_context(self.started(unit, instance))

    @asynccontextmanager
    async def booted(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self.serve, self.socket)
        async with server, AsyncExitStack() as last:
            last.push_async_callback(self.systemctl, "stop", "*")
            yield


async def test_the_commands_of_the_pages_install_deploy_upgrade_back_up_and_restore(
    tmp_path: Path,
) -> None:
    reader, repository = Reader(tmp_path / "machine", free_port()), tmp_path / "apps"
    create_repository(repository)
    async with reader.booted():
        [programs, files, start, key] = console_blocks("systemd.md", "Install")
        await reader.run(programs)
        await reader.run(files)
        [flags] = (reader.etc / "server.env").read_text().splitlines()
        names = ("piped-api", "web-api", "http", "api", "admin", "envoy-authz")
        ports = " ".join(f"--{n}-port={p}" for n, p in zip(names, free_ports(6), strict=True))
        # The link of the journal is for a browser.
        first = "PIPECD_FIRST_PROJECT=shop\nPIPECD_FIRST_ADMIN_PASSWORD=hello-shop"
        (reader.etc / "server.env").write_text(
            f"{flags} --host 127.0.0.1 --port {reader.port} {ports}\n{first}\n"
        )
        await reader.run(start)
        await reader.run(key)
        assert (reader.directory / "api-key").stat().st_mode & 0o077 == 0

        [register, start, file, user, launcher] = console_blocks("systemd.md", "Add a piped")
        await reader.run(register)
        await reader.run(f"ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519\n{file}")
        assert (reader.etc / "git-key-dev").stat().st_mode & 0o777 == 0o640
        config = reader.etc / "piped-dev.yaml"
        repositories = f"[{{repoID: apps, remote: {repository}, branch: main}}]"
        text = config.read_text().replace("repositories: []", f"repositories: {repositories}")
        config.write_text(text)
        await reader.run(start)
        [id] = re.findall(r"pipedID: (\S+)", text)

        async def pipectl(line: str) -> Any:
            return json.loads(await reader.run(f"pipectl {line}"))

        async def has_reported() -> bool:
            return "repositories" in await pipectl(f"piped get --piped-id {id}")

        await eventually(has_reported, within=60)
        add = f"application add --app-name web --piped-id {id} --repo-id apps --app-dir web"
        application = (await pipectl(f"{add} --output json"))["application_id"]

        async def has_succeeded() -> bool:
            listed = await pipectl(f"deployment list --app-id {application}")
            return [d["status"] for d in listed.get("deployments", [])] == [4]

        await eventually(has_succeeded, within=60)

        await reader.follow("systemd.md", "Upgrade")
        assert (reader.root / "opt/pipecd/current").resolve().name == "0.2.0"
        await reader.follow("systemd.md", "Back up and restore")
        assert await has_succeeded()
        # The page names the configuration in the current directory.
        shutil.copy(reader.etc / "control-plane.yaml", reader.directory)
        await reader.follow("backup.md", "SQLite, while the server runs")

        async def is_disabled() -> bool:
            return "applications" in await pipectl("application list --disabled")

        # What happens after a backup is not in it.
        await reader.run(f"pipectl application disable --app-id {application}")
        assert await is_disabled()
        await reader.follow("backup.md", "SQLite, restore")
        assert not await is_disabled()
        assert await has_succeeded()

        await reader.run(user)
        for unit in ("piped@prod", "piped-launcher@prod"):
            settings = reader.root / f"etc/systemd/system/{unit}.service.d" / "user.conf"
            assert settings.read_text() == "[Service]\nUser=piped-prod\nGroup=piped-prod\n"

        await reader.run(launcher)
        await until_logged(reader.root / "piped-launcher@.servicedev.log", "piped started")
        assert sorted(reader.running) == ["pipecd-server", "piped-launcher@dev"]
