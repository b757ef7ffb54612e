# SPDX-License-Identifier: Apache-2.0
"""A whole installation as processes: replicas, pipeds, plugin programs, targets and receivers.

    pipeds ─ front (TcpProxy) ─ calls (RpcProxy) ─ balancer (TcpProxy) ─ replicas ─ TcpProxy ─ database, cache, bucket
                                                  users (TcpProxy) ─────────┘

What really happened is written by the targets, see `applications`; users are clients of this process.
"""

import asyncio
import hmac
import itertools
import json
import os
import shlex
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from faults import shifted_clock
from faults.applications import CONFIG, NOW, FaultyApplication, Platform, Revision, Targets
from faults.disk import SmallDisk, mounted
from faults.installation import listening
from faults.layouts import Layout, Stores, open_stores
from faults.network import RpcProxy, TcpProxy
from faults.program import CURRENT, SEEDED_BUGS, Program, Release
from faults.registration import (
    ENCRYPTION_KEY,
    PEOPLE,
    PROJECT,
    TARGET,
    push_first_revisions,
    register,
)
from faults.repository import Repository
from faults.truth import Truth
from faults.upstream import upstream_arguments, upstream_environment, upstream_settings
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.web_pb2_grpc import WebServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from servers.kubernetes import Kubernetes
from servers.load import patient
from servers.piped import piped_arguments, piped_config
from servers.programs import built_program
from servers.receivers import Receivers
from servers.server import free_ports

if TYPE_CHECKING:
    from pipecd.proto.service.api_pb2_grpc import APIServiceAsyncStub
    from pipecd.proto.service.web_pb2_grpc import WebServiceAsyncStub

HOOK = "/hook"
# The piped whose scripts run in a plugin program of their own.
PLUGIN_PIPED = 1
# The piped that a launcher runs, and upgrades.
LAUNCHED_PIPED = 2
# What the launcher can choose from.
VERSIONS = ("v0.9.1", "v0.9.2")
DISK_MEGABYTES = 96
_PORTS: tuple[str, ...] = ("port", "piped-api", "web-api", "http", "api", "admin", "envoy-authz")
_STAGE_PLUGINS = ("wait", "waitapproval", "analysis")
# SIGUSR1 makes it flood its piped.
_PLUGIN = """\
#!{python}
import os
import signal
import threading

def flood():
    for _ in range(4000):
        os.write(2, b"x" * 4999 + b"\\n")

signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=flood, daemon=True).start())

from pipecd.plugins.scriptrun.plugin import ScriptRunPlugin
from pipecd.sdk import serve

with open("{pid_file}", "w") as file:
    file.write(str(os.getpid()))
serve(ScriptRunPlugin)
"""


@dataclass(frozen=True)
class Options:
    """What is installed."""

    layout: Layout
    applications: Sequence[FaultyApplication]
    pipeds: int = 3
    release: Release = CURRENT
    """What the programs are of, unless something else is said."""
    releases: Mapping[str, Release] = field(default_factory=dict[str, Release])
    """What can be installed, by name. Upgrades of replicas and by the launcher take turns among them."""
    first_releases: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of the releases that programs are of at first."""
    seeded_bugs: Sequence[str] = ()
    disk_megabytes: int = DISK_MEGABYTES
    """The size of the disk of each workspace, and of the control plane's."""


@dataclass
class FaultyPiped:
    """One registered piped: its program, key, and workspace."""

    number: int
    id: str
    key: str
    program: Program
    disk: SmallDisk | None
    is_launched: bool = False
    """Whether the launcher runs it."""

    @property
    def directory(self) -> Path:
        return self.program.directory / self.program.name

    @property
    def workspace(self) -> Path:
        return self.directory / "workspace"

    def signal(self, number: int) -> None:
        """Signals the piped, and the launcher that runs it."""
        self.program.signal(number)
        if pid := self.launched_pid():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def launched_pid(self) -> int:
        """The process that the launcher started last, if it runs; it writes its id itself."""
        with suppress(OSError, ValueError):
            pid = int(self.pid_file.read_text())
            if str(self.directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return 0

    @property
    def pid_file(self) -> Path:
        return self.directory / "launched.pid"

    @property
    def pid(self) -> int:
        """The process of the piped itself."""
        return self.launched_pid() if self.is_launched else self.program.pid


@dataclass
class WholeInstallation:
    """Everything that runs, and the clients of users."""

    directory: Path
    options: Options
    origin: Repository
    targets: Targets
    stores: Stores
    replicas: list[Program]
    ports: list[dict[str, int]]
    pipeds: list[FaultyPiped]
    application_ids: dict[str, str]
    api_key: str
    sessions: dict[str, str]
    """The session tokens of people."""
    front: TcpProxy
    calls: RpcProxy
    balancer: TcpProxy
    users: list[dict[str, TcpProxy]]
    """The network between users and each replica, by the name of the port."""
    hooks: Receivers
    truth: Truth
    data_disk: SmallDisk | None = None
    kubernetes: Kubernetes | None = None
    duplicates: list[Program] = field(default_factory=list[Program])
    applications: dict[str, FaultyApplication] = field(default_factory=dict[str, FaultyApplication])
    git_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    contents: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """What identifies the files of each application, by commit, also of commits that are gone."""
    messages: dict[str, str] = field(default_factory=dict[str, str])
    """The messages of these commits."""
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    nonces: dict[str, str] = field(default_factory=dict[str, str])
    """The nonce of the revision of each of these contents."""
    server_locks: defaultdict[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    """Held by who stops a database, cache, bucket or cluster."""

    @property
    def programs(self) -> list[Program]:
        return [*self.replicas, *(piped.program for piped in self.pipeds)]

    # Git

    async def push(self, revisions: Mapping[str, Revision], *, at: float | None = None) -> str:
        """Pushes new revisions of applications, by default as of now; returns the commit."""
        files: dict[str, str] = {}
        for name, revision in revisions.items():
            files |= self.targets.files(self.applications[name], revision)
        async with self.git_lock:
            return await asyncio.to_thread(self.origin.commit, files, at=at)

    def read_contents(self) -> None:
        """Reads the messages, parents and contents of all commits that the repository has."""
        logged = self.origin.git("log", "-z", "--all", "--reflog", "--format=%H%x09%P%x09%B")
        rows = [entry.split("\t", 2) for entry in logged.rstrip("\0").split("\0")]
        commits = {commit: message for commit, _, message in rows}
        self.messages |= commits
        self.parents |= {commit: tuple(parents.split()) for commit, parents, _ in rows}
        for commit in {*commits} - self.contents.keys():
            rows = (
                line.split(maxsplit=3) for line in self.origin.git("ls-tree", commit).splitlines()
            )
            self.contents[commit] = {
                name: hash_ for _, type_, hash_, name in rows if type_ == "tree"
            }
        for content in {c for each in self.contents.values() for c in each.values()} - self.nonces.keys():  # fmt: skip
            *_, last = self.origin.git("show", f"{content}:{CONFIG}").splitlines()
            self.nonces[content] = last.removeprefix("# ")

    # Clients

    @asynccontextmanager
    async def api(self, replica: int = 0) -> AsyncGenerator["APIServiceAsyncStub", None]:
        address = f"127.0.0.1:{self.users[replica]['api'].port}"
        authorization = credentials.api_key(self.api_key)
        async with open_channel(
            address, authorization=authorization, insecure=True, connect_timeout=patient(3)
        ) as channel:
            yield APIServiceStub(channel)

    @asynccontextmanager
    async def web(self, replica: int = 0) -> AsyncGenerator["WebServiceAsyncStub", None]:
        address = f"127.0.0.1:{self.users[replica]['web-api'].port}"
        async with open_channel(
            address, authorization="", insecure=True, connect_timeout=patient(3)
        ) as channel:
            yield WebServiceStub(channel)

    def cookie(self, person: str = PEOPLE[0]) -> tuple[tuple[str, str], ...]:
        return (("cookie", f"token={self.sessions[person]}"),)

    async def reject(self, deployment: str, stage: str, person: str, replica: int = 0) -> None:
        """Rejects a stage by the form of the console, which has no RPC."""
        token = self.sessions[person]
        csrf = hmac.digest(token.encode(), b"form of the console", "sha256").hex()
        base = f"http://127.0.0.1:{self.users[replica]['http'].port}"
        async with httpx2.AsyncClient(base_url=base, cookies={"token": token}) as browser:
            answer = await browser.post(
                f"/deployments/{deployment}/stages/{stage}/reject",
                data={"csrf": csrf, "reason": "not today"},
                timeout=10,
            )
        if answer.status_code >= 400:
            raise ConnectionError(f"the rejection was answered with {answer.status_code}")

    # Programs

    async def start_replica(self, number: int) -> None:
        await self.replicas[number].start()
        for port in ("piped-api", "api"):
            await listening(self.ports[number][port])

    def write_piped_config(self, piped: FaultyPiped) -> Path:
        piped.directory.mkdir(parents=True, exist_ok=True)
        config = piped.directory / "piped.yaml"
        text = piped_config(
            piped.id,
            piped.key,
            address=f"127.0.0.1:{self.front.port}",
            remote=self.origin.remote,
            project=PROJECT,
            rest=self._piped_rest(piped),
        )
        new = config.with_suffix(".new")
        new.write_text(text)
        new.replace(config)
        return config

    def _piped_rest(self, piped: FaultyPiped) -> str:
        if program := piped.program.release.upstream_piped:
            return upstream_settings(program)
        script: dict[str, Any] = {"name": "scriptrun"}
        if piped.number == PLUGIN_PIPED:
            script["url"] = f"file://{self._plugin_program(piped)}"
        plugins: list[dict[str, Any]] = [script, *({"name": name} for name in _STAGE_PLUGINS)]
        present = {application.platform for application in self.applications.values()}
        configs: dict[Platform, dict[str, Any]] = {
            Platform.PROCESS: {"directory": str(self.directory / "programs" / str(piped.number))},
            Platform.TERRAFORM: {"tool": "terraform"},
            Platform.KUBERNETES: {
                "kubeConfigPath": str(self.kubernetes.kubeconfig) if self.kubernetes else ""
            },
        }
        plugins += [
            {"name": str(platform), "deployTargets": [{"name": TARGET, "config": config}]}
            for platform, config in configs.items()
            if platform in present
        ]
        receivers = [{"name": "all", "webhook": {"url": self.hooks.url(HOOK)}}]
        routes = [{"name": "all", "receiver": "all", "groups": ["DEPLOYMENT", "STAGE"]}]
        notifications = {"routes": routes, "receivers": receivers}
        return (
            "  syncInterval: 5s\n"
            f"  plugins: {json.dumps(plugins)}\n"
            f"  notifications: {json.dumps(notifications)}\n"
        )

    def plugin_pid_file(self, piped: FaultyPiped) -> Path:
        return self.directory / f"plugin-{piped.number}.pid"

    def _plugin_program(self, piped: FaultyPiped) -> Path:
        file = piped.directory / "scriptrun"
        executables = piped.program.release.executables
        python = executables / "python" if executables else sys.executable
        file.write_text(_PLUGIN.format(python=python, pid_file=self.plugin_pid_file(piped)))
        file.chmod(0o755)
        return file

    async def start_piped(self, piped: FaultyPiped) -> None:
        self.write_piped_config(piped)
        await piped.program.start()

    def new_program(self, name: str, arguments: Sequence[str]) -> Program:
        return Program(
            name,
            self.directory,
            arguments,
            environment={
                **self.stores.environment,
                **self._path(),
                SEEDED_BUGS: ",".join(self.options.seeded_bugs),
            },
            release=self.options.releases.get(
                self.options.first_releases.get(name, ""), self.options.release
            ),
        )

    def add_piped(self, id_: str, key: str) -> None:
        """Adds the program of a registered piped, which is not started yet."""
        number = len(self.pipeds)
        name = f"piped-{number}"
        config = self.directory / name / "piped.yaml"
        program = self.new_program(name, ["piped", *piped_arguments(config, "--log-encoding=json")])
        piped = FaultyPiped(number, id_, key, program, None, is_launched=number == LAUNCHED_PIPED)
        if upstream := program.release.upstream_piped:
            program.arguments = upstream_arguments(upstream, config)
            program.environment = upstream_environment(config.parent)
            piped.is_launched = False
        elif piped.is_launched:
            program.arguments = ["launcher", *_launcher_arguments(self, piped, config)]
        self.pipeds.append(piped)

    def _path(self) -> dict[str, str]:
        """The variables with which pipeds find Terraform."""
        if not any(each.platform is Platform.TERRAFORM for each in self.applications.values()):
            return {}
        terraform = Path(built_program("terraform")).parent
        return {"PATH": f"{terraform}:{os.environ['PATH']}", "CHECKPOINT_DISABLE": "1"}

    async def start_duplicate(self, piped: FaultyPiped) -> Program:
        """Starts another piped with the id and key of this one, and a workspace of its own."""
        name = f"{piped.program.name}-duplicate-{len(self.duplicates)}"
        directory = self.directory / name
        directory.mkdir()
        config = directory / "piped.yaml"
        config.write_text((piped.directory / "piped.yaml").read_text())
        duplicate = self.new_program(
            name, ["piped", *piped_arguments(config, "--log-encoding=json")]
        )
        self.duplicates.append(duplicate)
        await duplicate.start()
        return duplicate

    async def close(self) -> None:
        for program in (*self.duplicates, *self.programs):
            await program.kill()
        end_processes_of(self.directory)


def end_processes_of(directory: Path) -> None:
    """Kills what the programs of an installation have left behind, such as supervisors of processes."""
    mark = str(directory).encode()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with suppress(OSError):
            about = process / "cmdline", process / "environ"
            if any(mark in file.read_bytes() for file in about) or str(
                (process / "cwd").readlink()
            ).startswith(str(directory)):
                os.kill(int(process.name), signal.SIGKILL)


@asynccontextmanager
async def open_whole_installation(
    directory: Path, options: Options
) -> AsyncGenerator[WholeInstallation, None]:
    """Installs and starts everything, with a first revision of every application pushed."""
    async with AsyncExitStack() as stack:
        disks = stack.enter_context(ExitStack())
        data_disk = _small_disk(directory / "data", disks, options.disk_megabytes)
        stores = await stack.enter_async_context(open_stores(options.layout, directory))
        kubernetes = None
        if any(each.platform is Platform.KUBERNETES for each in options.applications):
            kubernetes = await asyncio.to_thread(Kubernetes, has_audit_log=True)
            stack.callback(kubernetes.close)
        hooks = Receivers()
        stack.callback(hooks.close)
        ports = [dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True)) for _ in range(stores.replicas)]  # fmt: skip
        balancer = TcpProxy([of_replica["piped-api"] for of_replica in ports])
        await stack.enter_async_context(balancer.serve())
        calls = await stack.enter_async_context(RpcProxy(balancer.port).serve())
        users = [
            {
                name: await stack.enter_async_context(TcpProxy([of_replica[name]]).serve())
                for name in ("api", "web-api", "http")
            }
            for of_replica in ports
        ]
        front = await stack.enter_async_context(TcpProxy([calls.port]).serve())
        origin = Repository.begin(directory / "origin")
        (directory / "states").mkdir()
        installed = WholeInstallation(
            directory=directory,
            options=options,
            origin=origin,
            targets=Targets(directory / "truth", directory),
            truth=Truth.of(directory / "truth", kubernetes.audit_log if kubernetes else None),
            stores=stores,
            replicas=[],
            ports=ports,
            pipeds=[],
            application_ids={},
            api_key="",
            sessions={},
            front=front,
            calls=calls,
            balancer=balancer,
            users=users,
            hooks=hooks,
            data_disk=data_disk,
            kubernetes=kubernetes,
            applications={each.name: each for each in options.applications},
        )
        stack.push_async_callback(installed.close)
        await push_first_revisions(installed)
        await register(installed)
        installed.replicas = [
            installed.new_program(f"replica-{n}", ["pipecd", *_server_arguments(installed, n)])
            for n in range(stores.replicas)
        ]
        for piped in installed.pipeds:
            piped.disk = _small_disk(piped.workspace, disks, options.disk_megabytes)
        async with asyncio.TaskGroup() as tasks:
            for number in range(stores.replicas):
                tasks.create_task(installed.start_replica(number))
        for piped in installed.pipeds:
            await installed.start_piped(piped)
        yield installed


def _small_disk(directory: Path, disks: ExitStack, megabytes: int) -> SmallDisk | None:
    disk = mounted(directory, megabytes=megabytes)
    if disk is not None:
        disks.callback(disk.unmount)
    return disk


def _server_arguments(installed: WholeInstallation, number: int) -> list[str]:
    directory, stores = installed.directory, installed.stores
    config, key = directory / "control-plane.yaml", directory / "key"
    document = {
        "apiVersion": "pipecd.dev/v1beta1",
        "kind": "ControlPlane",
        "spec": {
            "address": "http://127.0.0.1",
            "stateKey": "s",
            "datastore": stores.datastore.model_dump(by_alias=True, exclude_defaults=True),
            "filestore": stores.filestore.model_dump(by_alias=True, exclude_defaults=True),
        },
    }
    config.write_text(json.dumps(document))
    key.write_text(ENCRYPTION_KEY)
    flags = [
        f"--{name}{'' if name == 'port' else '-port'}={port}"
        for name, port in installed.ports[number].items()
    ]
    if stores.cache_address:
        flags.append(f"--cache-address={stores.cache_address}")
    settings = (f"--config-file={config}", f"--encryption-key-file={key}", "--host=127.0.0.1")
    return ["server", *settings, "--log-encoding=json", *flags]


def _launcher_arguments(
    installed: WholeInstallation, piped: FaultyPiped, config: Path
) -> list[str]:
    """A launcher that fetches every version from a directory, where all are the same program or take turns.

    Each writes when it is launched, and its process id, unless it is only asked for its flags. It has the
    clock of its launcher.
    """
    releases = installed.directory / "releases"
    record = f'echo "launch {piped.program.name} - - $$ {NOW} -" >> {installed.targets.truth}'
    options = installed.options
    of_versions = itertools.cycle([*options.releases.values()] or [options.release])
    for version, release in zip(VERSIONS, of_versions, strict=False):
        variables, command = _launched(release, piped.program.clock_file)
        file = releases / version / "piped"
        file.parent.mkdir(parents=True)
        file.write_text(
            f'#!/bin/sh\ncase "$*" in *--help) ;; *) {record}\necho $$ > {piped.pid_file};; esac\n'
            f'{variables}exec {shlex.join(command)} "$@"\n'
        )
        file.chmod(0o755)
    _, *flags = piped_arguments(config, "--log-encoding=json")
    return [
        "launcher",
        *flags,
        f"--home-dir={config.parent / 'launcher'}",
        "--check-interval=5s",
        f"--default-version={VERSIONS[0]}",
        f"--piped-release=file://{releases}/{{version}}/piped",
    ]


def _launched(release: Release, clock: Path) -> tuple[str, Sequence[str]]:
    """The variables and the command of a piped that is launched."""
    if release.executables:
        return "", (str(release.executables / "piped"),)
    variables = (
        f"export PYTHONPATH={shlex.quote(str(release.sources))}\n" if release.sources else ""
    )
    return variables, (sys.executable, shifted_clock.__file__, str(clock), "piped")
