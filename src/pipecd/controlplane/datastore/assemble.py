# SPDX-License-Identifier: Apache-2.0
"""Puts the stores together, whatever the engines under them."""

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.leases import SqlLeases
from pipecd.controlplane.datastore.stagelogs import SqlStageLogs
from pipecd.controlplane.datastore.tables.applications import SqlApplications
from pipecd.controlplane.datastore.tables.commands import SqlCommands, SqlEvents
from pipecd.controlplane.datastore.tables.deployments import SqlChains, SqlDeployments, SqlTraces
from pipecd.controlplane.datastore.tables.people import SqlApiKeys, SqlPipeds, SqlProjects
from pipecd.controlplane.datastore.tables.webhooks import SqlWebhookSecrets
from pipecd.controlplane.stores import Stores
from pipecd.controlplane.stores.files import Cache, Files
from pipecd.model.clock import Now, utc_now


def assemble_stores(
    database: Database, files: Files, cache: Cache, *, now: Now = utc_now
) -> Stores:
    """Everything a control plane remembers, on these engines."""
    leases = SqlLeases(database, now=now)
    return Stores(
        projects=SqlProjects(database, now=now),
        applications=SqlApplications(database, now=now),
        deployments=SqlDeployments(database, now=now),
        commands=SqlCommands(database, now=now),
        pipeds=SqlPipeds(database, now=now),
        api_keys=SqlApiKeys(database, now=now),
        events=SqlEvents(database, now=now),
        chains=SqlChains(database, now=now),
        traces=SqlTraces(database, now=now),
        stage_logs=SqlStageLogs(database, files, leases),
        leases=leases,
        webhook_secrets=SqlWebhookSecrets(database),
        files=files,
        cache=cache,
    )
