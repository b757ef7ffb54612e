# SPDX-License-Identifier: Apache-2.0
"""The use cases of the control plane, one module per noun.

They check permission and ownership, so that no API can forget it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.sign_ins import UsedCodes
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.api_keys import ApiKeyUseCases
from pipecd.controlplane.usecases.application_reports import ApplicationReports
from pipecd.controlplane.usecases.applications import ApplicationUseCases
from pipecd.controlplane.usecases.chains import ChainUseCases
from pipecd.controlplane.usecases.commands import CommandUseCases
from pipecd.controlplane.usecases.deployment_reports import DeploymentReports
from pipecd.controlplane.usecases.deployments import DeploymentUseCases
from pipecd.controlplane.usecases.events import EventUseCases
from pipecd.controlplane.usecases.insights import Insights
from pipecd.controlplane.usecases.livestate import LiveStates
from pipecd.controlplane.usecases.logs import Logs
from pipecd.controlplane.usecases.piped_leases import PipedLeaseUseCases
from pipecd.controlplane.usecases.pipeds import Encryption, PipedUseCases
from pipecd.controlplane.usecases.plan_previews import PlanPreviews
from pipecd.controlplane.usecases.projects import ConfigProject, ProjectUseCases, Roles
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.controlplane.usecases.sessions import Sessions
from pipecd.controlplane.usecases.shared_objects import SharedObjects
from pipecd.controlplane.usecases.webhooks import Webhooks
from pipecd.model.clock import Now, utc_now

# Signals that invalidate caches of this process.
_CACHED = frozenset({Topic.PIPED, Topic.LEASE, Topic.API_KEY, Topic.PROJECT})


@dataclass(frozen=True)
class UseCases:
    """All use cases, for the APIs and the console."""

    address: str
    bus: Bus
    access: Access
    credentials: Credentials
    applications: ApplicationUseCases
    application_reports: ApplicationReports
    deployments: DeploymentUseCases
    deployment_reports: DeploymentReports
    commands: CommandUseCases
    pipeds: PipedUseCases
    piped_leases: PipedLeaseUseCases
    projects: ProjectUseCases
    roles: Roles
    sessions: Sessions
    session_endings: SessionEndings
    used_codes: UsedCodes
    api_keys: ApiKeyUseCases
    webhooks: Webhooks
    events: EventUseCases
    chains: ChainUseCases
    logs: Logs
    livestate: LiveStates
    insights: Insights
    objects: SharedObjects
    encryption: Encryption
    plan_previews: PlanPreviews

    async def run(self) -> None:
        """Invalidates caches on signals of other replicas, and detects pipeds that go offline."""
        async with self.bus.subscribe(only=_CACHED) as signals, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pipeds.offline_detector.run(), name="offline pipeds")
            tasks.create_task(self.session_endings.run(), name="session endings")
            async for signal in signals:
                self.invalidate(signal)

    def invalidate(self, signal: Signal) -> None:
        """Drops the cached results that the signal may have made outdated."""
        match signal.topic:
            case Topic.PIPED | Topic.API_KEY:
                self.credentials.invalidate(signal.id)
            case Topic.LEASE:
                self.piped_leases.invalidate(signal.id)
            case Topic.PROJECT:
                self.access.invalidate(signal.id)
            case Topic.EVERYTHING:
                self.credentials.invalidate_all()
                self.piped_leases.invalidate_all()
                self.access.invalidate_all()
            case _:
                pass


def build_use_cases(
    stores: Stores,
    bus: Bus,
    *,
    address: str,
    encryption_key: bytes,
    projects_from_config: Sequence[ConfigProject] = (),
    now: Now = utc_now,
) -> UseCases:
    """Creates the use cases over their stores and bus."""
    configured = frozenset(project.id for project in projects_from_config)
    access = Access(stores, config_projects=configured, now=now)
    credentials = Credentials(stores, encryption_key, config_projects=configured, now=now)
    commands = CommandUseCases(stores, bus, access)
    endings = SessionEndings(stores.session_endings, bus, now)
    projects = ProjectUseCases(stores, bus, access, endings, encryption_key, projects_from_config)
    application_reports = ApplicationReports(stores, bus, access)
    deployment_reports = DeploymentReports(stores, bus, access, application_reports)
    return UseCases(
        address=address,
        bus=bus,
        access=access,
        credentials=credentials,
        applications=ApplicationUseCases(stores, bus, access, commands, now),
        application_reports=application_reports,
        deployments=DeploymentUseCases(stores, access, commands),
        deployment_reports=deployment_reports,
        commands=commands,
        pipeds=PipedUseCases(stores, bus, access, commands, credentials, now),
        piped_leases=PipedLeaseUseCases(stores, bus, now),
        projects=projects,
        roles=Roles(projects),
        sessions=Sessions(projects, stores.sessions, endings, stores.cache, encryption_key, now),
        session_endings=endings,
        used_codes=stores.used_codes,
        api_keys=ApiKeyUseCases(stores, bus, access, credentials),
        webhooks=Webhooks(stores, bus, access, encryption_key, now),
        events=EventUseCases(stores, bus, access, now),
        chains=ChainUseCases(stores, bus, access, commands, deployment_reports, now),
        logs=Logs(stores, bus, access),
        livestate=LiveStates(stores, bus, access, now),
        insights=Insights(stores, access),
        objects=SharedObjects(stores, access),
        encryption=Encryption(access),
        plan_previews=PlanPreviews(stores, access, commands, address, now),
    )


__all__ = ["ConfigProject", "UseCases", "build_use_cases"]
