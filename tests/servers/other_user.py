# SPDX-License-Identifier: Apache-2.0
"""What another local user tries against the programs of this one.

A function of this module runs in a process of the user `nobody`, with arguments and results in
JSON. It is imported before the process drops its privileges, since that user cannot read our code
everywhere.
"""

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from pipecd.proto.plugin import deployment_pb2, host_pb2
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub
from pipecd.proto.plugin.host_pb2_grpc import PluginServiceStub

NOBODY = 65534
_SECONDS = 3.0


async def as_nobody(attack: Callable[..., Any], *arguments: object) -> Any:
    """Runs a function of this module as another user and returns its result."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"import sys; sys.path.append({str(Path(__file__).parent.parent)!r}); "
        "from servers.other_user import main; main()",
        attack.__name__,
        json.dumps(arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, f"{attack.__name__} could not be tried"
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Drops all privileges and runs the function that the arguments name."""
    attack, arguments = globals()[sys.argv[1]], json.loads(sys.argv[2])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.umask(0o022)
    sys.stdout.write(f"{json.dumps(attack(*arguments))}\n")


def install_tool(address: str, script: str) -> str:
    """Makes piped run a script, as its plugins do; returns the path of the installed tool."""
    with grpc.insecure_channel(address) as channel:
        request = host_pb2.InstallToolRequest(
            name="tool", version="1.0.0", install_script=f'{script}\ntouch "{{{{ .OutPath }}}}"'
        )
        try:
            return PluginServiceStub(channel).InstallTool(request, timeout=_SECONDS).installed_path
        except grpc.RpcError:
            return ""


def forge_log(address: str, deployment: str) -> bool:
    """Adds a line to the log of a stage."""
    with grpc.insecure_channel(address) as channel:
        request = host_pb2.ReportStageLogsRequest(deployment_id=deployment, stage_id="s1")
        request.blocks.add(index=1, log="forged", created_at=1)
        try:
            PluginServiceStub(channel).ReportStageLogs(request, timeout=_SECONDS)
        except grpc.RpcError:
            return False
        return True


def forge_metadata(address: str, deployment: str) -> bool:
    """Stores metadata of a stage, such as who approved it."""
    with grpc.insecure_channel(address) as channel:
        request = host_pb2.PutStageMetadataRequest(
            deployment_id=deployment, stage_id="s1", key="ApprovedUsers", value="boss"
        )
        try:
            PluginServiceStub(channel).PutStageMetadata(request, timeout=_SECONDS)
        except grpc.RpcError:
            return False
        return True


def fetch_stages(address: str) -> list[str]:
    """Calls a plugin as piped does."""
    with grpc.insecure_channel(address) as channel:
        try:
            response = DeploymentServiceStub(channel).FetchDefinedStages(
                deployment_pb2.FetchDefinedStagesRequest(), timeout=_SECONDS
            )
        except grpc.RpcError:
            return []
        return list(response.stages)


def read(path: str) -> str:
    """Reads a file."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def command_line(pid: int) -> str:
    """Reads the arguments of a process, which every user may."""
    return read(f"/proc/{pid}/cmdline").replace("\0", "\n")


def environment(pid: int) -> str:
    """Reads the environment of a process."""
    return read(f"/proc/{pid}/environ")


def below(directory: str) -> dict[str, str]:
    """Reads every file that can be reached below a directory."""
    found: dict[str, str] = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            if content := read(f"{parent}/{name}"):
                found[f"{parent}/{name}"] = content
    return found


def connect(path: str) -> bool:
    """Opens a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def request_line(path: str, request: str) -> str:
    """Sends a line to a Unix socket and returns what it answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_SECONDS)
        try:
            client.connect(path)
            client.sendall(request.encode() + b"\n")
            return client.recv(65536).decode()
        except OSError:
            return ""


def replace_socket(path: str) -> bool:
    """Removes a socket, or moves it away, and listens in its place."""
    for take in (Path(path).unlink, lambda: Path(path).rename(f"{path}.old")):
        try:
            take()
        except OSError:
            continue
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
        return True
    return False


def take_port(port: int) -> bool:
    """Answers on a port in place of the plugin that is about to listen there; was it called?"""
    probed = threading.Event()

    class Impostor(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            if handler_call_details.method.endswith("/Check"):
                probed.set()
                answer: Any = health_pb2.HealthCheckResponse(status=1)
            else:
                answer = deployment_pb2.FetchDefinedStagesResponse(stages=["STOLEN"])
            return grpc.unary_unary_rpc_method_handler(
                lambda _, __: answer, response_serializer=lambda m: m.SerializeToString()
            )

    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Impostor(),))
    try:
        server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        return False
    server.start()
    is_probed = probed.wait(_SECONDS * 8)
    time.sleep(_SECONDS / 3)
    server.stop(None)
    return is_probed
