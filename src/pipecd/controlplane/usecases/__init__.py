# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a control plane, one module per noun.

Permission and ownership are checked here, once, for every door.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.api_keys import ApiKeys
from pipecd.controlplane.usecases.application_reports import ApplicationReports
from pipecd.controlplane.usecases.applications import Applications
from pipecd.controlplane.usecases.chains import Chains
from pipecd.controlplane.usecases.commands import Commands
from pipecd.controlplane.usecases.deployment_reports import DeploymentReports
from pipecd.controlplane.usecases.deployments import Deployments
from pipecd.controlplane.usecases.encryption import Encryption
from pipecd.controlplane.usecases.events import Events
from pipecd.controlplane.usecases.insights import Insights
from pipecd.controlplane.usecases.livestate import LiveStates
from pipecd.controlplane.usecases.logs import Logs
from pipecd.controlplane.usecases.pipeds import Pipeds
from pipecd.controlplane.usecases.plan_previews import Previews
from pipecd.controlplane.usecases.projects import ConfigProject, Projects
from pipecd.controlplane.usecases.roles import Roles
from pipecd.controlplane.usecases.sessions import Sessions
from pipecd.controlplane.usecases.shared_objects import Objects
from pipecd.controlplane.usecases.webhooks import Webhooks
from pipecd.model.clock import Now, utc_now

# Of what answers are kept here.
_KEPT = frozenset({Topic.PIPED, Topic.API_KEY, Topic.PROJECT})


@dataclass(frozen=True)
class UseCases:
    """Everything that the doors of a control plane offer."""

    address: str
    bus: Bus
    access: Access
    credentials: Credentials
    applications: Applications
    application_reports: ApplicationReports
    deployments: Deployments
    deployment_reports: DeploymentReports
    commands: Commands
    pipeds: Pipeds
    projects: Projects
    roles: Roles
    sessions: Sessions
    api_keys: ApiKeys
    webhooks: Webhooks
    events: Events
    chains: Chains
    logs: Logs
    livestate: LiveStates
    insights: Insights
    objects: Objects
    encryption: Encryption
    previews: Previews

    async def run(self) -> None:
        """Follows the bus, drops what other replicas changed, and notices who falls silent."""
        async with self.bus.subscribe(only=_KEPT) as signals, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pipeds.silence.run(), name="silent pipeds")
            async for signal in signals:
                self.hear(signal)

    def hear(self, signal: Signal) -> None:
        """Drops whatever this signal puts in doubt."""
        match signal.topic:
            case Topic.PIPED | Topic.API_KEY:
                self.credentials.invalidate(signal.id)
            case Topic.PROJECT:
                self.access.invalidate(signal.id)
            case Topic.EVERYTHING:
                self.credentials.invalidate_all()
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
    """Wires the use cases over their stores and bus."""
    declared = frozenset(project.id for project in projects_from_config)
    access = Access(stores, config_projects=declared, now=now)
    credentials = Credentials(stores, encryption_key, config_projects=declared, now=now)
    commands = Commands(stores, bus, access)
    projects = Projects(stores, bus, access, encryption_key, projects_from_config)
    deployment_reports = DeploymentReports(stores, bus, access)
    return UseCases(
        address=address,
        bus=bus,
        access=access,
        credentials=credentials,
        applications=Applications(stores, bus, access, commands, now),
        application_reports=ApplicationReports(stores, bus, access),
        deployments=Deployments(stores, access, commands),
        deployment_reports=deployment_reports,
        commands=commands,
        pipeds=Pipeds(stores, bus, access, commands, credentials, now),
        projects=projects,
        roles=Roles(projects),
        sessions=Sessions(projects, encryption_key, now),
        api_keys=ApiKeys(stores, bus, access, credentials),
        webhooks=Webhooks(stores, bus, access, encryption_key, now),
        events=Events(stores, bus, access, now),
        chains=Chains(stores, bus, access, commands, deployment_reports, now),
        logs=Logs(stores, bus, access),
        livestate=LiveStates(stores, bus, access),
        insights=Insights(stores, access),
        objects=Objects(stores, access),
        encryption=Encryption(access),
        previews=Previews(stores, access, commands, address, now),
    )


__all__ = ["ConfigProject", "UseCases", "build_use_cases"]
