# SPDX-License-Identifier: Apache-2.0
"""What is registered and pushed before the programs of an installation start."""

import asyncio
import time
from typing import TYPE_CHECKING

from faults.applications import (
    CONFIG,
    FaultyApplication,
    Platform,
    Revision,
    Shape,
    Upstream,
    values,
)
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import build_use_cases
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import TERRAFORM, ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest

if TYPE_CHECKING:
    from faults.whole_installation import WholeInstallation

PROJECT = "shop"
PEOPLE = ("root", "ann", "ben")
REPOSITORY = "site"
TARGET = "here"
UPSTREAM_PROVIDER = "tf"
ENCRYPTION_KEY = "k" * 64


async def push_first_revisions(installed: "WholeInstallation") -> None:
    files = {"README": "sources\n"}
    for application in installed.applications.values():
        if application.shape is Shape.EVENTS:
            files |= {f"{application.name}/{name}": text for name, text in values().items()}
        revision = Revision(nonce=time.time_ns())
        files |= installed.targets.files(application, revision)
    first = {name: text.encode() for name, text in files.items()}
    await asyncio.to_thread(installed.origin.begin_history, first, "the beginning")


async def register(installed: "WholeInstallation") -> None:
    """Registers the project, pipeds, applications, people and an API key before any server runs."""
    admin = User(PROJECT, PEOPLE[0], ("Admin",))
    files = await LocalFiles.open(installed.directory / "registration")
    key = ENCRYPTION_KEY.encode()
    async with open_datastore(installed.stores.datastore) as database:
        stores = create_stores(database, files, MemoryCache())
        cases = build_use_cases(stores, MemoryBus(), address="http://cp", encryption_key=key)
        await cases.projects.add(PROJECT, "")
        repository = ApplicationGitRepository(
            id=REPOSITORY, remote=installed.origin.remote, branch="main"
        )
        meta = ReportPipedMetaRequest(repositories=[repository], config="{}")
        for number in range(installed.options.pipeds):
            registered = await cases.pipeds.register(f"piped-{number}", "", by=admin)
            await cases.pipeds.report_meta(meta, by=PipedCaller(PROJECT, registered.id))
            installed.add_piped(registered.id, registered.key)
        for application in installed.applications.values():
            draft = new_application(application, installed.pipeds[application.piped].id, repository)
            installed.application_ids[application.name] = await cases.applications.add(
                draft, by=admin
            )
        installed.api_key = await cases.api_keys.generate("faults", APIKey.READ_WRITE, by=admin)
        installed.sessions = {
            name: cases.sessions.issue(User(PROJECT, name, ("Admin",))) for name in PEOPLE
        }


def new_application(
    application: FaultyApplication, piped_id: str, repository: ApplicationGitRepository
) -> Application:
    """What is registered of an application."""
    path = ApplicationGitPath(repo=repository, path=application.name, config_filename=CONFIG)
    draft = Application(name=application.name, piped_id=piped_id, git_path=path)
    if application.upstream is Upstream.FIRST:
        draft.kind, draft.platform_provider = TERRAFORM, UPSTREAM_PROVIDER
    elif application.platform is Platform.SCRIPT:
        draft.platform_provider = "p"
    else:
        chosen = DeployTargets(deploy_targets=[TARGET])
        draft.deploy_targets_by_plugin[str(application.platform)].CopyFrom(chosen)
    return draft
