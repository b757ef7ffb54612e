# SPDX-License-Identifier: Apache-2.0
"""The tables, files and cache of a control plane, together."""

from dataclasses import dataclass

from pipecd.controlplane.cache import Cache
from pipecd.controlplane.datastore.application_health import ApplicationHealth
from pipecd.controlplane.datastore.applications import Applications
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.deployments import Chains, Commands, Deployments, Traces
from pipecd.controlplane.datastore.encryption_key import EncryptionKeyRecord
from pipecd.controlplane.datastore.events import Events
from pipecd.controlplane.datastore.key_grants import KeyGrants
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.piped_leases import PipedLeases
from pipecd.controlplane.datastore.plugin_failures import PluginFailures
from pipecd.controlplane.datastore.projects import ApiKeys, Pipeds, Projects, WebhookSecrets
from pipecd.controlplane.datastore.schema import EXT_KEY_APPROVAL, EXT_SESSION_KEY
from pipecd.controlplane.datastore.sign_ins import SessionEndings, SessionRecords, UsedCodes
from pipecd.controlplane.datastore.stage_logs import StageLogs
from pipecd.controlplane.datastore.verified_keys import VerifiedKeyDigests
from pipecd.controlplane.filestore import Files
from pipecd.model.clock import Now, utc_now


@dataclass(frozen=True)
class Stores:
    """Everything that a control plane persists or shares between its replicas."""

    projects: Projects
    applications: Applications
    application_health: ApplicationHealth
    deployments: Deployments
    commands: Commands
    pipeds: Pipeds
    api_keys: ApiKeys
    key_approvals: KeyGrants
    session_keys: KeyGrants
    events: Events
    chains: Chains
    traces: Traces
    stage_logs: StageLogs
    leases: Leases
    piped_leases: PipedLeases
    plugin_failures: PluginFailures
    webhook_secrets: WebhookSecrets
    sessions: SessionRecords
    session_endings: SessionEndings
    used_codes: UsedCodes
    verified_keys: VerifiedKeyDigests
    encryption_key: EncryptionKeyRecord
    files: Files
    cache: Cache


def create_stores(database: Database, files: Files, cache: Cache, *, now: Now = utc_now) -> Stores:
    """Creates the tables on a database, beside these files and this cache."""
    leases = Leases(database, now=now)
    return Stores(
        projects=Projects(database, now=now),
        applications=Applications(database, now=now),
        application_health=ApplicationHealth(database),
        deployments=Deployments(database, now=now),
        commands=Commands(database, now=now),
        pipeds=Pipeds(database, now=now),
        api_keys=ApiKeys(database, now=now),
        key_approvals=KeyGrants(database, EXT_KEY_APPROVAL, now=now),
        session_keys=KeyGrants(database, EXT_SESSION_KEY, now=now),
        events=Events(database, now=now),
        chains=Chains(database, now=now),
        traces=Traces(database, now=now),
        stage_logs=StageLogs(database, files, leases),
        leases=leases,
        piped_leases=PipedLeases(database),
        plugin_failures=PluginFailures(database),
        webhook_secrets=WebhookSecrets(database),
        sessions=SessionRecords(database),
        session_endings=SessionEndings(database),
        used_codes=UsedCodes(database),
        verified_keys=VerifiedKeyDigests(database),
        encryption_key=EncryptionKeyRecord(database),
        files=files,
        cache=cache,
    )
