# SPDX-License-Identifier: Apache-2.0
"""Another user of piped's host calls, reads and impersonates nothing of piped and its plugins."""

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.config.piped import PluginSpec
from pipecd.observe import debug
from pipecd.observe.admin import admin_server, respond, standard_pages
from pipecd.piped.pluginhost.host import PluginHost
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.process import PluginTimeouts
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.pluginhost.tool_registry import Tool, ToolRegistry
from pipecd.plugins.process.client import SupervisorClient
from pipecd.plugins.process.http_head import Malformed, Sender, parse_request
from pipecd.proto.plugin import host_pb2
from pipecd.proto.plugin.deployment_pb2 import FetchDefinedStagesRequest
from pipecd.sdk.testing import MemoryHost
from servers import other_user
from servers.control_plane import open_control_plane, start_control_plane
from servers.origin import Origin
from servers.other_user import as_nobody, below
from servers.polling import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]

SECRET = "plugin-token-4711"
PLUGIN = f"""#!{sys.executable}
from pipecd.sdk import Stage, StageContext, StagePlugin, StageResult, serve

class Vault(StagePlugin):
    stages = (Stage("OPEN"),)

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()

if __name__ == "__main__":
    serve(Vault)
"""


class ToolHost(MemoryHost):
    """A piped that installs tools for its plugins."""

    def __init__(self, tools: Path) -> None:
        super().__init__()
        self.masks = SecretMasks()
        self._registry = ToolRegistry(tools)

    async def InstallTool(
        self, request: host_pb2.InstallToolRequest
    ) -> host_pb2.InstallToolResponse:
        tool = Tool(request.name, request.version, request.install_script)
        path = await self._registry.install(tool)
        return host_pb2.InstallToolResponse(installed_path=str(path))


@dataclass(frozen=True)
class Scene:
    """A piped with a plugin that was downloaded and one that is installed as a package."""

    directory: Path
    registry: PluginRegistry
    pids: dict[str, int] = field(default_factory=dict[str, int])
    arguments: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def service(self) -> str:
        """The address of piped's plugin service, by a command line that everyone can read."""
        return argument(self.arguments["downloaded"], "--piped-plugin-service")

    def plugin(self, name: str) -> str:
        """The address of a plugin, by its command line or the files that it names."""
        arguments = self.arguments[name]
        if "--config-file" in arguments:
            file = argument(arguments, "--config-file")
            return f"unix:{Path(file).with_suffix('.sock')}"
        if self.service.startswith("unix:"):
            number = list(self.arguments).index(name)
            return f"{self.service.replace('unix://', 'unix:').removesuffix('piped.sock')}plugin-{number}.sock"
        return f"localhost:{json.loads(argument(arguments, '--config'))['port']}"


def argument(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def plugin_process(directory: Path, program: str) -> tuple[int, list[str]] | None:
    """The process of a plugin of a scene and its arguments."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (process / "cmdline").read_text().split("\0")
            text, variables = "\0".join(arguments), (process / "environ").read_text()
            is_plugin = "--piped-plugin-service" in arguments and program in text
            if is_plugin and (str(directory) in text or str(directory) in variables):
                return int(process.name), arguments
    return None


@pytest.fixture(scope="module")
def shared_directory() -> Generator[Path]:
    """A directory that every user may enter, unlike those of pytest."""
    directory = Path(tempfile.mkdtemp(prefix="shared-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def install_plugins(directory: Path) -> tuple[Path, Path]:
    """Returns the program of a plugin and the directory of a package with another."""
    directory.mkdir()
    program = directory / "downloaded"
    program.write_text(PLUGIN)
    program.chmod(0o755)
    packages = directory / "packages"
    information = packages / "vaultplugin-1.0.dist-info"
    information.mkdir(parents=True)
    (packages / "vaultplugin.py").write_text(PLUGIN)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vaultplugin\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        "[pipecd.plugins]\ninstalled = vaultplugin:Vault\n"
    )
    return program, packages


@asynccontextmanager
async def open_scene(directory: Path, **settings: Any) -> AsyncGenerator[Scene]:
    program, packages = install_plugins(directory)
    plugins = [
        PluginSpec(name="downloaded", url=f"file://{program}"),
        PluginSpec(name="installed", config={"token": SECRET}),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(packages))
        patch.setenv("PYTHONPATH", str(packages))
        host: Any = ToolHost(directory / "tools")
        async with PluginHost.start(plugins, callbacks=host, **settings) as registry:
            scene = Scene(directory, registry)
            for name, text in (("downloaded", str(program)), ("installed", "serve_installed")):
                process = plugin_process(directory, text)
                assert process is not None, f"the plugin {name} runs"
                scene.pids[name], scene.arguments[name] = process
            yield scene


@pytest.fixture(scope="module")
async def with_socket(shared_directory: Path) -> AsyncGenerator[Scene]:
    async with open_scene(shared_directory / "socket") as scene:
        yield scene


@pytest.fixture(scope="module")
async def with_port(shared_directory: Path) -> AsyncGenerator[Scene]:
    """A piped with `--plugin-service-port`, whose plugins call it by TCP."""
    async with open_scene(shared_directory / "port", service_port=0) as scene:
        yield scene


@dataclass(frozen=True)
class Attack:
    """A function of another user; it gains something if its result is not empty."""

    scene: str
    function: Callable[..., Any]
    arguments: Callable[[Scene], tuple[object, ...]]


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


SCRIPT = "id -u > {0}/ran-as"
ATTACKS: dict[str, Attack] = {
    "a script by InstallTool, through the socket": Attack(
        "with_socket", other_user.install_tool, lambda s: (s.service, SCRIPT.format(s.directory))
    ),
    "a script by InstallTool, on the port": Attack(
        "with_port", other_user.install_tool, lambda s: (s.service, SCRIPT.format(s.directory))
    ),
    "a script by InstallTool, on the port by IPv6": Attack(
        "with_port",
        other_user.install_tool,
        lambda s: (f"ipv6:[::1]:{port_of(s.service)}", SCRIPT.format(s.directory)),
    ),
    "a script by InstallTool, on the port by IPv4 in IPv6": Attack(
        "with_port",
        other_user.install_tool,
        lambda s: (f"ipv6:[::ffff:127.0.0.1]:{port_of(s.service)}", SCRIPT.format(s.directory)),
    ),
    "a line in the log of a stage, through the socket": Attack(
        "with_socket", other_user.forge_log, lambda s: (s.service, "d1")
    ),
    "a line in the log of a stage, on the port": Attack(
        "with_port", other_user.forge_log, lambda s: (s.service, "d1")
    ),
    "the approval of a stage, through the socket": Attack(
        "with_socket", other_user.forge_metadata, lambda s: (s.service, "d1")
    ),
    "the approval of a stage, on the port": Attack(
        "with_port", other_user.forge_metadata, lambda s: (s.service, "d1")
    ),
    "a call of an installed plugin": Attack(
        "with_socket", other_user.fetch_stages, lambda s: (s.plugin("installed"),)
    ),
    "a call of a downloaded plugin of our SDK": Attack(
        "with_socket", other_user.fetch_stages, lambda s: (s.plugin("downloaded"),)
    ),
    "the files beside piped's socket": Attack(
        "with_socket",
        other_user.below,
        lambda s: (str(Path(s.service.removeprefix("unix://")).parent),),
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_another_user_gains_nothing_from_piped_and_plugins(
    attack: Attack, with_socket: Scene, with_port: Scene
) -> None:
    scene = with_socket if attack.scene == "with_socket" else with_port
    assert not await as_nobody(attack.function, *attack.arguments(scene))
    assert not (scene.directory / "ran-as").exists()


async def test_the_user_of_piped_calls_it_by_both_ways(
    with_socket: Scene, with_port: Scene
) -> None:
    for scene in (with_socket, with_port):
        assert await asyncio.to_thread(other_user.forge_log, scene.service, "d1")
        for name in ("downloaded", "installed"):
            plugin = scene.registry.named(name)
            stages = (await plugin.FetchDefinedStages(FetchDefinedStagesRequest())).stages
            assert list(stages) == ["OPEN"]
    assert with_socket.service.startswith("unix:///")
    assert re.fullmatch(r"localhost:\d+", with_port.service)


async def test_the_configuration_of_an_installed_plugin_is_not_on_its_command_line(
    with_socket: Scene,
) -> None:
    pid = with_socket.pids["installed"]
    shown = await as_nobody(other_user.command_line, pid)
    assert "--piped-plugin-service" in shown, "everyone reads the command line"
    assert SECRET not in shown
    assert SECRET not in await as_nobody(other_user.environment, pid)


async def test_a_program_of_another_user_on_the_port_of_a_plugin_is_not_called(
    shared_directory: Path,
) -> None:
    program = shared_directory / "slow"
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    host: Any = ToolHost(shared_directory / "tools")
    spec = PluginSpec(name="slow", url=f"file://{program}")
    timeouts = PluginTimeouts(startup=30, grace=0.5)

    async def take_port() -> bool:
        while (process := plugin_process(shared_directory, str(program))) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        port = json.loads(argument(process[1], "--config"))["port"]
        return await as_nobody(other_user.take_port, port)

    attack = asyncio.create_task(take_port())
    async with PluginHost.start([spec], callbacks=host, timeouts=timeouts) as registry:
        (failure,) = registry.failures
        assert "belongs to a program of another user" in failure.reason
        assert "STOLEN" not in registry.stages
    assert await attack, "the other user's program was probed"


APPLICATION = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with:
          run: echo line-of-the-log; touch {0}/started; while [ ! -e {0}/go ]; do sleep 0.05; done
"""
RECEIVER = "notifications: {routes: [{name: all, receiver: r}], receivers: [{name: r, webhook: {url: 'http://127.0.0.1:9/'}}]}\n"


@pytest.fixture(scope="module")
async def readable(shared_directory: Path) -> dict[str, str]:
    """The files of a workspace that another user can read while a deployment runs.

    The directory existed before piped, with the usual permissions, like a volume.
    """
    directory = shared_directory / "plane"
    directory.mkdir(mode=0o755)
    origin = Origin.begin(shared_directory / "origin")
    origin.commit(
        {
            "cart/app.pipecd.yaml": APPLICATION.format(shared_directory),
            "cart/decrypted": "secret-of-the-application",
        }
    )
    async with open_control_plane(directory) as plane:
        await plane.piped.add_repository("site", origin.remote)
        await plane.piped.add_application("cart")
        for name in ("", "deployments", "git", "trigger"):
            (plane.piped.workspace / name).mkdir(mode=0o755, parents=True)
        async with plane.piped.run(origin.remote, RECEIVER):
            await eventually((shared_directory / "started").exists, 30)
            own = below(str(plane.piped.workspace))
            assert any("secret-of-the-application" in text for text in own.values())
            found = await as_nobody(other_user.below, str(plane.piped.workspace))
            (shared_directory / "go").touch()
    return found


ATTACKS_ON_FILES: dict[str, str] = {
    "the sources of a deployment": r"deployments/[^/]+/sources/.*decrypted",
    "the application file": r"deployments/[^/]+/sources/.*app\.pipecd\.yaml",
    "the journal of a deployment": r"deployments/[^/]+/journal\.json",
    "the log of a stage": r"deployments/[^/]+/logs/.*",
    "the notifications that are not sent yet": r"notifications\.jsonl",
    "the objects of a repository": r"git/.*",
    "the commits that were seen": r"trigger/.*",
    "any other file": r"(?!lock$).*",
}


@pytest.mark.parametrize("attack", ATTACKS_ON_FILES.values(), ids=ATTACKS_ON_FILES)
async def test_another_user_reads_no_file_of_a_workspace(
    attack: str, readable: dict[str, str]
) -> None:
    names = [name.partition("workspace of dev/")[2] for name in readable]
    assert [name for name in names if re.fullmatch(attack, name)] == []


async def test_another_user_reads_what_is_meant_for_everyone(
    readable: dict[str, str], shared_directory: Path
) -> None:
    assert [Path(name).name for name in readable] == ["lock"]
    assert await as_nobody(other_user.read, str(shared_directory / "started")) == ""
    assert await as_nobody(other_user.below, str(shared_directory / "origin"))


@dataclass(frozen=True)
class SocketAttack:
    """A function of another user on the path of a file; `request` is sent if it is a socket."""

    file: str
    function: Callable[..., Any]
    request: dict[str, Any] | None = None


def operation(operation: str, **arguments: str) -> SocketAttack:
    request = {"operation": operation, "arguments": arguments}
    return SocketAttack("pipecd.db.sock", other_user.request_line, request)


def control(name: str, **more: Any) -> SocketAttack:
    request = {"request": name, **more}
    return SocketAttack("control/supervisor.sock", other_user.request_line, request)


ATTACKS_ON_THE_OPERATOR: dict[str, SocketAttack] = {
    "the list of projects": operation("list-projects"),
    "another project": operation("add-project", id="mine"),
    "a new password of an admin": operation("reset-password", id="demo"),
    "a key of a project": operation("add-api-key", project="demo", name="x", role="READ_WRITE"),
    "no request at all": SocketAttack("pipecd.db.sock", other_user.connect),
    "a socket in place of the operator's": SocketAttack(
        "pipecd.db.sock", other_user.replace_socket
    ),
    "the database": SocketAttack("pipecd.db", other_user.read),
    "the log of the database": SocketAttack("pipecd.db-wal", other_user.read),
}
ATTACKS_ON_THE_SUPERVISOR: dict[str, SocketAttack] = {
    "what runs": control("status"),
    "the version of the supervisor": control("hello"),
    "a program of one's own": control("apply", application={"id": "x", "name": "x"}),
    "the end of an application": control("remove", application="web"),
    "the end of all programs": control("shut-down"),
    "the listening sockets": control("hand-over"),
    "an impostor of the supervisor": SocketAttack(
        "control/supervisor.sock", other_user.replace_socket
    ),
    "the state with the environment of programs": SocketAttack(
        "control/state.json", other_user.read
    ),
    "the log of the supervisor": SocketAttack("control/supervisor.log", other_user.read),
    "every file of the supervisor": SocketAttack("", other_user.below),
}


async def try_attack(attack: SocketAttack, directory: Path) -> Any:
    path = str(directory / attack.file)
    arguments = [path] if attack.request is None else [path, json.dumps(attack.request)]
    return await as_nobody(attack.function, *arguments)


@pytest.fixture(scope="module")
async def database(shared_directory: Path) -> AsyncGenerator[Path]:
    """The database of a control plane on SQLite, in a directory that every user may enter."""
    directory = shared_directory / "server"
    directory.mkdir(mode=0o755)
    async with start_control_plane(directory):
        (socket,) = directory.rglob("*.sock")
        socket.parent.chmod(0o755)
        yield socket.with_suffix("")


@pytest.mark.parametrize("attack", ATTACKS_ON_THE_OPERATOR.values(), ids=ATTACKS_ON_THE_OPERATOR)
async def test_another_user_is_no_operator(attack: SocketAttack, database: Path) -> None:
    name = attack.file.replace("pipecd.db", database.name)
    attack = replace(attack, file=name)
    assert not await try_attack(attack, database.parent)
    request = json.dumps({"operation": "list-projects", "arguments": {}})
    answer = await asyncio.to_thread(other_user.request_line, f"{database}.sock", request)
    assert "rows" in json.loads(answer), "the user of the server is an operator"


@pytest.fixture(scope="module")
async def supervisor(shared_directory: Path) -> AsyncGenerator[Path]:
    """The directory of a supervisor of programs, which their users must be able to enter."""
    client = SupervisorClient.at(shared_directory / "processes")
    await client.ensure()
    yield client.directory.path
    await client.shut_down()


@pytest.mark.parametrize(
    "attack", ATTACKS_ON_THE_SUPERVISOR.values(), ids=ATTACKS_ON_THE_SUPERVISOR
)
async def test_another_user_does_not_control_programs(
    attack: SocketAttack, supervisor: Path
) -> None:
    assert not await try_attack(attack, supervisor)
    assert await SupervisorClient.at(supervisor).statuses() == []


# What a client says about itself, which a program behind the router may believe.
ATTACKS_BY_HEADERS: dict[str, bytes] = {
    "another address": b"X-Forwarded-For: 10.0.0.1",
    "another address in lower case": b"x-forwarded-for: 10.0.0.1",
    "another address with underscores": b"X_Forwarded_For: 10.0.0.1",
    "another address with both": b"X-Forwarded_For: 10.0.0.1",
    "another address, twice": b"X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.1",
    "another protocol": b"X-Forwarded-Proto: 10.0.0.1",
    "another host": b"X-Forwarded-Host: 10.0.0.1",
    "another port": b"X-Forwarded-Port: 10.0.0.1",
    "another path": b"X-Forwarded-Prefix: 10.0.0.1",
    "a port with underscores": b"X_Forwarded_Port: 10.0.0.1",
    "another address in the words of a proxy": b"X-Real-IP: 10.0.0.1",
    "another address in the words of a proxy, with underscores": b"X_REAL_IP: 10.0.0.1",
    "a proxy for the program's own requests": b"Proxy: 10.0.0.1",
    "another address by the standard": b"Forwarded: for=10.0.0.1",
    "a removal of what the router adds": b"X: 10.0.0.1\r\nConnection: X-Forwarded-For, X",
    "a folded line": b"X: y\r\n X-Forwarded-For: 10.0.0.1",
    "a bare line feed": b"X: y\nX-Forwarded-For: 10.0.0.1",
    "a blank before the colon": b"X-Forwarded-For : 10.0.0.1",
    "a null byte": b"X\0: y\r\nX-Forwarded-For: 10.0.0.1",
}


@pytest.mark.parametrize("fields", ATTACKS_BY_HEADERS.values(), ids=ATTACKS_BY_HEADERS)
def test_a_client_of_the_router_says_nothing_about_itself(fields: bytes) -> None:
    head = b"GET / HTTP/1.1\r\nHost: web\r\n" + fields + b"\r\n\r\n"
    sender = Sender(b"192.0.2.7", is_trusted=False, authority=b"web")
    with suppress(Malformed):
        forwarded = parse_request(head, sender).head
        assert b"10.0.0.1" not in forwarded
        assert b"X-Forwarded-For: 192.0.2.7\r\n" in forwarded


@dataclass(frozen=True)
class AdminAttack:
    """A request for a page of the admin port, and the status that it gets."""

    path: str
    peer: str
    status: int = 403


ATTACKS_ON_PROFILES: dict[str, AdminAttack] = {
    "a profile from another machine": AdminAttack("/debug/pprof/profile", "203.0.113.7"),
    "stacks from another machine": AdminAttack("/debug/pprof/goroutine", "203.0.113.7"),
    "objects from the same network": AdminAttack("/debug/objects", "10.0.0.2"),
    "tasks from the same link": AdminAttack("/debug/tasks", "fe80::1%eth0"),
    "the delay of the loop by IPv6": AdminAttack("/debug/loop", "2001:db8::1"),
    "the heap by IPv4 in IPv6": AdminAttack("/debug/pprof/heap", "::ffff:203.0.113.7"),
    "the list of profiles": AdminAttack("/debug/pprof/", "203.0.113.7"),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_PROFILES.values(), ids=ATTACKS_ON_PROFILES)
async def test_profiles_are_for_this_machine(attack: AdminAttack) -> None:
    request = f"GET {attack.path} HTTP/1.1\r\n\r\n".encode()
    response = await respond(request, standard_pages(None), peer=attack.peer)
    assert response.startswith(f"HTTP/1.1 {attack.status} ".encode())


async def test_profiles_are_taken_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "_SECONDS", 0.2)
    async with (
        admin_server(standard_pages(None), host="127.0.0.1", port=0) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        paths = ("/debug/pprof/profile", "/debug/pprof/profile", "/debug/loop", "/debug/objects")
        responses = await asyncio.gather(*(http.get(path) for path in paths))
        assert sorted(response.status_code for response in responses) == [200, 503, 503, 503]
        assert (await http.get("/debug/tasks")).status_code == 200
        for path in ("/metrics", "/healthz", "/version"):
            assert (await http.get(path)).status_code == 200
