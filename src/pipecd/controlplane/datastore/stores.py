# SPDX-License-Identifier: Apache-2.0
"""The tables, files and cache of a control plane, together."""

from dataclasses import dataclass

from pipecd.controlplane.cache import Cache
from pipecd.controlplane.datastore.applications import Applications
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.deployments import Chains, Commands, Deployments, Traces
from pipecd.controlplane.datastore.events import Events
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.piped_leases import PipedLeases
from pipecd.controlplane.datastore.projects import ApiKeys, Pipeds, Projects, WebhookSecrets
from pipecd.controlplane.datastore.sign_ins import SessionEndings, UsedCodes
from pipecd.controlplane.datastore.stage_logs import StageLogs
from pipecd.controlplane.filestore import Files
from pipecd.model.clock import Now, utc_now


@dataclass(frozen=True)
class Stores:
    """Everything that a control plane persists or shares between its replicas."""

    projects: Projects
    applications: Applications
    deployments: Deployments
    commands: Commands
    pipeds: Pipeds
    api_keys: ApiKeys
    events: Events
    chains: Chains
    traces: Traces
    stage_logs: StageLogs
    leases: Leases
    piped_leases: PipedLeases
    webhook_secrets: WebhookSecrets
    session_endings: SessionEndings
    used_codes: UsedCodes
    files: Files
    cache: Cache


def create_stores(database: Database, files: Files, cache: Cache, *, now: Now = utc_now) -> Stores:
    """Creates the tables on a database, beside these files and this cache."""
    leases = Leases(database, now=now)
    return Stores(
        projects=Projects(database, now=now),
        applications=Applications(database, now=now),
        deployments=Deployments(database, now=now),
        commands=Commands(database, now=now),
        pipeds=Pipeds(database, now=now),
        api_keys=ApiKeys(database, now=now),
        events=Events(database, now=now),
        chains=Chains(database, now=now),
        traces=Traces(database, now=now),
        stage_logs=StageLogs(database, files, leases),
        leases=leases,
        piped_leases=PipedLeases(database),
        webhook_secrets=WebhookSecrets(database),
        session_endings=SessionEndings(database),
        used_codes=UsedCodes(database),
        files=files,
        cache=cache,
    )
