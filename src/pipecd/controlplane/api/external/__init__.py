# SPDX-License-Identifier: Apache-2.0
"""The door for pipectl and API keys: APIService."""

from pipecd.controlplane.api.external.applications import ApplicationRpcs
from pipecd.controlplane.api.external.courtesy import as_mistakes
from pipecd.controlplane.api.external.deployments import DeploymentRpcs
from pipecd.controlplane.api.external.pipeds import PipedRpcs
from pipecd.controlplane.api.external.previews import PreviewRpcs
from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import api_pb2
from pipecd.wire.credentials import Metadata, parse_api_key
from pipecd.wire.table import RpcObserver, RpcTable

SERVICE = api_pb2.DESCRIPTOR.services_by_name["APIService"]


def external_table(
    cases: UseCases, *, observer: RpcObserver | None = None
) -> RpcTable[ApiKeyCaller]:
    """Every RPC of APIService."""

    async def authenticate(metadata: Metadata) -> ApiKeyCaller:
        return await cases.api_keys.verify(parse_api_key(metadata))

    parts = (
        ApplicationRpcs(cases),
        DeploymentRpcs(cases),
        PipedRpcs(cases),
        PreviewRpcs(cases),
    )
    return RpcTable(
        SERVICE, [as_mistakes(SERVICE, part) for part in parts], authenticate, observer=observer
    )


__all__ = ["SERVICE", "external_table"]
