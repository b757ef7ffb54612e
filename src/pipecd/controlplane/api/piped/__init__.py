# SPDX-License-Identifier: Apache-2.0
"""The door for pipeds: PipedService, one module per noun."""

from pipecd.controlplane.api.piped.applications import ApplicationRpcs
from pipecd.controlplane.api.piped.chains import ChainRpcs
from pipecd.controlplane.api.piped.commands import CommandRpcs
from pipecd.controlplane.api.piped.deployments import Created, DeploymentRpcs
from pipecd.controlplane.api.piped.events import EventRpcs
from pipecd.controlplane.api.piped.livestate import LiveStateRpcs
from pipecd.controlplane.api.piped.logs import LogRpcs
from pipecd.controlplane.api.piped.metadata import MetadataRpcs
from pipecd.controlplane.api.piped.objects import ObjectRpcs
from pipecd.controlplane.api.piped.pipeds import PipedRpcs
from pipecd.controlplane.api.piped.wakeups import Wakeups
from pipecd.controlplane.auth.credentials import AuthenticatedPiped
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import piped_pb2
from pipecd.proto.service.wakeups_pb2 import WatchWakeupsRequest
from pipecd.wire.credentials import Metadata, parse_piped_token
from pipecd.wire.table import RpcObserver, RpcTable

SERVICE = piped_pb2.DESCRIPTOR.services_by_name["PipedService"]


def piped_table(
    cases: UseCases, *, observer: RpcObserver | None = None, created: Created | None = None
) -> RpcTable[AuthenticatedPiped]:
    """Every RPC of PipedService, and the wake-up stream under the same prefix.

    `created` is told the project of every new deployment.
    """

    async def authenticate(metadata: Metadata) -> AuthenticatedPiped:
        return await cases.credentials.piped(parse_piped_token(metadata))

    wakeups = Wakeups(cases.bus, cases.credentials)
    parts = (
        PipedRpcs(cases),
        ApplicationRpcs(cases),
        DeploymentRpcs(cases, created),
        MetadataRpcs(cases),
        LogRpcs(cases),
        CommandRpcs(cases),
        LiveStateRpcs(cases),
        EventRpcs(cases),
        ObjectRpcs(cases),
        ChainRpcs(cases),
    )
    return RpcTable(
        SERVICE,
        parts,
        authenticate,
        streams={"WatchWakeups": (WatchWakeupsRequest, wakeups.watch)},
        observer=observer,
    )


__all__ = ["piped_table"]
