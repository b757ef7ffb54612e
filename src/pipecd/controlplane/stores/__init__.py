# SPDX-License-Identifier: Apache-2.0
"""Protocols and records only: what must be stored, said without saying how."""

from dataclasses import dataclass

from pipecd.controlplane.stores.applications import Applications
from pipecd.controlplane.stores.commands import Commands, Events
from pipecd.controlplane.stores.deployments import Chains, Deployments, Traces
from pipecd.controlplane.stores.files import Cache, Files
from pipecd.controlplane.stores.leases import Leases
from pipecd.controlplane.stores.people import ApiKeys, Pipeds, Projects
from pipecd.controlplane.stores.stagelogs import StageLogs
from pipecd.controlplane.stores.webhooks import WebhookSecrets


@dataclass(frozen=True)
class Stores:
    """Everything a control plane remembers."""

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
    webhook_secrets: WebhookSecrets
    files: Files
    cache: Cache


__all__ = ["Stores"]
