# SPDX-License-Identifier: Apache-2.0
"""A whole PipeCD in one process: control plane, upkeep, one piped and a sample repository."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_control_plane, read_piped
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import UserMistake
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.quickstart.datadir import DataDir, Identity, locked
from pipecd.quickstart.files import write_control_plane, write_piped
from pipecd.quickstart.follow import ended_deployments
from pipecd.quickstart.sample import make_repository
from pipecd.quickstart.seed import seed_application, seed_project
from pipecd.quickstart.terminal import Terminal

HOST = "127.0.0.1"
_STOP_WITHIN = 5.0


async def run_quickstart(directory: Path, port: int, terminal: Terminal) -> None:
    """Runs until it is cancelled; whatever it made is found again at the next start."""
    with locked(directory) as data:
        try:
            await _run(data, chosen_port(port), terminal)
        except asyncio.CancelledError:
            terminal.ended()
            raise


async def _run(data: DataDir, port: int, terminal: Terminal) -> None:
    with terminal.step("Preparing the sample repository"):
        await make_repository(data.repository)
        identity = data.identity()
    async with AsyncExitStack() as opened:
        with terminal.step("Starting the control plane"):
            plane = await opened.enter_async_context(control_plane(_settings(data, port)))
            identity = await seed_project(plane, data, identity)
        await _with_piped(plane, data, identity, terminal)


async def _with_piped(
    plane: ControlPlane, data: DataDir, identity: Identity, terminal: Terminal
) -> None:
    started = asyncio.Event()
    async with asyncio.TaskGroup() as parts:
        piped = _piped_settings(data, identity, plane.port)
        parts.create_task(run_piped(piped, ready=started.set), name="piped")
        parts.create_task(_tell_ends(plane, terminal), name="deployments")
        with terminal.step("Starting a piped"):
            await started.wait()
            await seed_application(plane, data, identity)
        terminal.ready(f"http://{HOST}:{plane.port}", data, identity.password)


async def _tell_ends(plane: ControlPlane, terminal: Terminal) -> None:
    async for end in ended_deployments(plane):
        commit = end.deployment.trigger.commit
        terminal.deployed(
            f"{end.deployment.application_name} at {commit.hash[:7]} ({commit.message})",
            DeploymentStatus(end.deployment.status),
            end.seconds,
            f"{plane.cases.address}/deployments/{end.deployment.id}",
        )


def _settings(data: DataDir, port: int) -> ServerSettings:
    text = write_control_plane(data, address=f"http://{HOST}:{port}")
    spec = read_control_plane(text, file=str(data.control_plane_config))
    key = data.key()
    return ServerSettings(
        spec, key, host=HOST, port=port, insecure_cookie=True, grace_period=_STOP_WITHIN
    )


def _piped_settings(data: DataDir, identity: Identity, port: int) -> PipedSettings:
    text = write_piped(data, identity, host=HOST, port=port)
    config = read_piped(text, file=str(data.piped_config), catalog=load_catalog())
    return PipedSettings(config=config, insecure=True, workspace=data.piped_workspace)


def chosen_port(port: int) -> int:
    """The port itself, or a free one for 0; a busy one is refused before anything is made."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as e:
            raise UserMistake(
                f"port {port} is in use: {e.strerror}",
                hint="stop the program that uses it or choose another with --port",
            ) from e
        return probe.getsockname()[1]
