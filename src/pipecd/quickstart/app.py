# SPDX-License-Identifier: Apache-2.0
"""Runs a control plane with its background jobs, one piped and the sample application."""

import asyncio
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_control_plane, read_piped
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.signal import Topic
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import NotFound, UserMistake
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.program.atomic_write import write_private
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.quickstart.datadir import PROJECT, USERNAME, DataDir, Identity, locked_data_dir
from pipecd.quickstart.sample_repository import APPLICATION, REPOSITORY_ID, create_repository
from pipecd.quickstart.terminal import Terminal

HOST = "127.0.0.1"
ADMIN = User(project=PROJECT, name=USERNAME, roles=("Admin",))
_GRACE_PERIOD_SECONDS = 5.0


async def run_quickstart(directory: Path, port: int, terminal: Terminal) -> None:
    """Runs until it is cancelled; the next start with the same directory keeps its data."""
    with locked_data_dir(directory) as data:
        port = available_port(port)
        config = data.write_control_plane_config(address=f"http://{HOST}:{port}")
        settings = ServerSettings(
            read_control_plane(config, file=str(data.control_plane_config)),
            data.load_encryption_key(),
            host=HOST,
            port=port,
            insecure_cookie=True,
            grace_period=_GRACE_PERIOD_SECONDS,
        )
        try:
            async with AsyncExitStack() as stack:
                with terminal.step("Preparing the sample repository"):
                    await create_repository(data.repository)
                with terminal.step("Starting the control plane"):
                    plane = await stack.enter_async_context(control_plane(settings))
                    identity = await register_piped(plane, data)
                await _run_piped(plane, data, identity, terminal)
        except asyncio.CancelledError:
            terminal.show_stopped()
            raise


async def _run_piped(
    plane: ControlPlane, data: DataDir, identity: Identity, terminal: Terminal
) -> None:
    """Runs the piped beside the control plane and deploys the sample application."""
    started = asyncio.Event()
    config = read_piped(
        data.write_piped_config(identity, host=HOST, port=plane.port),
        file=str(data.piped_config),
        catalog=load_catalog(),
    )
    piped = PipedSettings(config=config, insecure=True, workspace=data.piped_workspace)
    async with asyncio.TaskGroup() as group:
        group.create_task(run_piped(piped, ready=started.set), name="piped")
        group.create_task(print_finished_deployments(plane, terminal), name="deployments")
        with terminal.step("Starting a piped"):
            await started.wait()
            await register_application(plane, data, identity)
        terminal.show_ready(f"http://{HOST}:{plane.port}", data, identity.password)


def available_port(port: int) -> int:
    """The port itself, or a free one for 0; raises UserMistake if the port is in use."""
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


async def register_piped(plane: ControlPlane, data: DataDir) -> Identity:
    """Creates the project, the API key and the piped unless they exist, and stores their keys."""
    identity = data.load_identity()
    try:
        await plane.stores.projects.get(PROJECT)
    except NotFound:
        admin = StaticAdmin(USERNAME, identity.password)
        await plane.cases.projects.add(PROJECT, "Created by pipecd quickstart", admin)
    if not data.api_key.exists():
        key = await plane.cases.api_keys.generate("quickstart", APIKey.READ_WRITE, by=ADMIN)
        await asyncio.to_thread(write_private, data.api_key, key.encode())
    if not identity.piped_id:
        description = "Runs in the process of the control plane"
        piped = await plane.cases.pipeds.register("quickstart", description, by=ADMIN)
        identity = replace(identity, piped_id=piped.id, piped_key=piped.key)
        await asyncio.to_thread(data.save_identity, identity)
    return identity


async def register_application(plane: ControlPlane, data: DataDir, identity: Identity) -> None:
    """Registers the sample application unless it is, once the piped has reported repositories."""
    if identity.application_id:
        return
    async with plane.bus.subscribe(project=PROJECT) as signals:
        while not (await plane.stores.pipeds.get(identity.piped_id)).repositories:
            await anext(signals)
    application = Application(
        name=APPLICATION,
        piped_id=identity.piped_id,
        git_path=ApplicationGitPath(
            repo=ApplicationGitRepository(id=REPOSITORY_ID),
            path=APPLICATION,
            config_filename=DEFAULT_CONFIG_FILE,
        ),
    )
    application_id = await plane.cases.applications.add(application, by=ADMIN)
    identity = replace(identity, application_id=application_id)
    await asyncio.to_thread(data.save_identity, identity)


async def print_finished_deployments(plane: ControlPlane, terminal: Terminal) -> None:
    """Prints each deployment once, when it has finished."""
    first_seen: dict[str, float] = {}
    printed: set[str] = set()
    async with plane.bus.subscribe(project=PROJECT) as signals:
        async for signal in signals:
            if signal.topic is not Topic.DEPLOYMENT or signal.id in printed:
                continue
            since = first_seen.setdefault(signal.id, time.monotonic())
            deployment = await plane.stores.deployments.get(signal.id)
            status = DeploymentStatus(deployment.status)
            if not status.is_completed:
                continue
            printed.add(signal.id)
            del first_seen[signal.id]
            commit = deployment.trigger.commit
            terminal.show_deployment(
                f"{deployment.application_name} at {commit.hash[:7]} ({commit.message})",
                status,
                time.monotonic() - since,
                f"{plane.cases.address}/deployments/{deployment.id}",
            )
