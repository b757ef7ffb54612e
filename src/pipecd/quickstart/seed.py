# SPDX-License-Identifier: Apache-2.0
"""Fills an empty control plane: a project, an API key, a piped and the sample application."""

import asyncio
from dataclasses import replace

from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.controlplane.app import ControlPlane
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.signal import Topic
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import NotFound
from pipecd.program.atomic_write import write_private
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.quickstart.datadir import PROJECT, USERNAME, DataDir, Identity
from pipecd.quickstart.sample import APPLICATION, REPOSITORY_ID

ADMIN = User(project=PROJECT, name=USERNAME, roles=("Admin",))


async def seed_project(plane: ControlPlane, data: DataDir, identity: Identity) -> Identity:
    """Makes what is missing of project, API key and piped; kept as soon as it is made."""
    try:
        await plane.stores.projects.get(PROJECT)
    except NotFound:
        admin = StaticAdmin(USERNAME, identity.password)
        await plane.cases.projects.add(PROJECT, "Made by pipecd quickstart", admin)
    if not data.api_key.exists():
        key = await plane.cases.api_keys.generate("quickstart", APIKey.READ_WRITE, by=ADMIN)
        await asyncio.to_thread(write_private, data.api_key, key.encode())
    if not identity.piped_id:
        piped = await plane.cases.pipeds.register("quickstart", "Runs beside this", by=ADMIN)
        identity = replace(identity, piped_id=piped.id, piped_key=piped.key)
        await asyncio.to_thread(data.keep, identity)
    return identity


async def seed_application(plane: ControlPlane, data: DataDir, identity: Identity) -> Identity:
    """Registers the sample application once the piped has told which repositories it watches."""
    if identity.application_id:
        return identity
    await _until_described(plane, identity.piped_id)
    draft = Application(
        name=APPLICATION,
        piped_id=identity.piped_id,
        git_path=ApplicationGitPath(
            repo=ApplicationGitRepository(id=REPOSITORY_ID),
            path=APPLICATION,
            config_filename=DEFAULT_CONFIG_FILE,
        ),
    )
    application_id = await plane.cases.applications.add(draft, by=ADMIN)
    identity = replace(identity, application_id=application_id)
    await asyncio.to_thread(data.keep, identity)
    return identity


async def _until_described(plane: ControlPlane, piped_id: str) -> None:
    async with plane.bus.subscribe(project=PROJECT) as signals:
        if (await plane.stores.pipeds.get(piped_id)).repositories:
            return
        async for signal in signals:
            if signal.topic not in (Topic.PIPED, Topic.EVERYTHING):
                continue
            if (await plane.stores.pipeds.get(piped_id)).repositories:
                return
