# SPDX-License-Identifier: Apache-2.0
"""Runs a control plane with its background jobs, one piped and the sample application."""

import asyncio
import socket
import time
from collections.abc import Mapping
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
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import NotFound, UserMistake
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.plugins.process.client import SupervisorClient
from pipecd.program.atomic_write import write_private
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.quickstart.datadir import PROJECT, TARGET, USERNAME, DataDir, Identity, locked_data_dir
from pipecd.quickstart.sample_repository import (
    APPLICATION,
    REPOSITORY_ID,
    SERVICE,
    create_repository,
)
from pipecd.quickstart.terminal import Terminal, seconds_taken
from pipecd.quickstart.visitors import Visitors

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
            encryption_key_file=str(data.encryption_key),
            # The key is made again if its file was deleted.
            new_encryption_key=True,
        )
        try:
            async with AsyncExitStack() as stack:
                with terminal.step("Preparing the sample repository"):
                    identity = await prepare_repository(data, port)
                # Whatever happens, no program stays behind.
                stack.push_async_callback(SupervisorClient.at(data.programs).shut_down)
                with terminal.step("Starting the control plane"):
                    plane = await stack.enter_async_context(control_plane(settings))
                    identity = await register_piped(plane, data, identity)
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
    # Its control plane has no collector of traces, so there is no use in loading OpenTelemetry.
    piped = PipedSettings(
        config=config, insecure=True, workspace=data.piped_workspace, with_traces=False
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(run_piped(piped, ready=started.set), name="piped")
        visitors = Visitors(HOST, identity.service_port)
        if data.has_service:
            group.create_task(visitors.run(), name="visitors")
        group.create_task(print_finished_deployments(plane, visitors, terminal), name="deployments")
        with terminal.step("Starting a piped"):
            await started.wait()
            identity = await register_applications(plane, data, identity)
        if identity.service_id:
            first = record_first_deployment(plane, data, identity)
            group.create_task(first, name="first deployment")
        service = f"http://{HOST}:{identity.service_port}"
        terminal.show_ready(f"http://{HOST}:{plane.port}", service, data, identity.password)


async def prepare_repository(data: DataDir, port: int) -> Identity:
    """Creates the sample repository, whose files contain the ports of the web service."""
    identity = data.load_identity()
    if not identity.service_port:
        identity = replace(
            identity, service_port=free_port(port + 1), status_port=free_port(port + 2)
        )
        await asyncio.to_thread(data.save_identity, identity)
    await create_repository(
        data.repository, service_port=identity.service_port, status_port=identity.status_port
    )
    return identity


def free_port(preferred: int) -> int:
    """Returns the preferred port, or another one if it is in use."""
    try:
        return available_port(preferred)
    except UserMistake:
        return available_port(0)


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


async def register_piped(plane: ControlPlane, data: DataDir, identity: Identity) -> Identity:
    """Creates the project, the API key and the piped unless they exist, and stores their keys."""
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


async def register_applications(plane: ControlPlane, data: DataDir, identity: Identity) -> Identity:
    """Registers the applications unless they are, once the piped has reported repositories."""
    async with plane.bus.subscribe(project=PROJECT) as signals:
        while not (await plane.stores.pipeds.get(identity.piped_id)).repositories:
            await anext(signals)
    if not identity.service_id and data.has_service:
        targets = {"process": DeployTargets(deploy_targets=[TARGET])}
        added = await _add_application(plane, identity, SERVICE, targets)
        identity = replace(identity, service_id=added)
        await asyncio.to_thread(data.save_identity, identity)
    if not identity.application_id:
        added = await _add_application(plane, identity, APPLICATION, {})
        identity = replace(identity, application_id=added)
        await asyncio.to_thread(data.save_identity, identity)
    return identity


async def record_first_deployment(plane: ControlPlane, data: DataDir, identity: Identity) -> None:
    """Stores that the web service was deployed, as soon as it was: it may be broken then."""
    async with plane.bus.subscribe(project=PROJECT) as signals:
        while not identity.is_service_deployed:
            service = await plane.stores.applications.get(identity.service_id)
            if service.HasField("most_recently_successful_deployment"):
                identity = replace(identity, is_service_deployed=True)
                await asyncio.to_thread(data.save_identity, identity)
                return
            await anext(signals)


async def _add_application(
    plane: ControlPlane, identity: Identity, name: str, targets: Mapping[str, DeployTargets]
) -> str:
    application = Application(
        name=name,
        piped_id=identity.piped_id,
        git_path=ApplicationGitPath(
            repo=ApplicationGitRepository(id=REPOSITORY_ID),
            path=name,
            config_filename=DEFAULT_CONFIG_FILE,
        ),
        deploy_targets_by_plugin=targets,
    )
    return await plane.cases.applications.add(application, by=ADMIN)


async def print_finished_deployments(
    plane: ControlPlane, visitors: Visitors, terminal: Terminal
) -> None:
    """Prints each deployment once, when it has finished."""
    started_at = to_unix(utc_now())
    first_seen: dict[str, float] = {}
    printed: set[str] = set()
    async with plane.bus.subscribe(project=PROJECT) as signals:
        async for signal in signals:
            if signal.topic is not Topic.DEPLOYMENT or signal.id in printed:
                continue
            since = first_seen.setdefault(signal.id, time.monotonic())
            deployment = await plane.stores.deployments.get(signal.id)
            if not DeploymentStatus(deployment.status).is_completed:
                continue
            printed.add(signal.id)
            del first_seen[signal.id]
            url = f"{plane.cases.address}/deployments/{deployment.id}"
            seconds = seconds_taken(
                deployment, observed=time.monotonic() - since, started_at=started_at
            )
            terminal.show_deployment(deployment, seconds, url)
            if deployment.application_name == SERVICE:
                counted = visitors.take_counts()
                if deployment.running_commit_hash:
                    terminal.show_visitors(*counted)
