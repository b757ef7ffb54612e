# SPDX-License-Identifier: Apache-2.0
"""Verdicts for Envoy (`ext_authz`): which requests with the token of a piped may pass."""

import grpc

from pipecd.controlplane.api.gateway.bearer import piped_of
from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.usecases import UseCases
from pipecd.model.errors import PipecdError
from pipecd.proto.gateway import authz_pb2 as pb
from pipecd.wire.credentials import Metadata
from pipecd.wire.status import to_status
from pipecd.wire.table import RpcTable

SERVICE = pb.DESCRIPTOR.services_by_name["Authorization"]


class AuthorizationRpcs:
    """Answers Check; a refusal is a verdict, not a failed call."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def Check(self, request: pb.CheckRequest, _caller: None) -> pb.CheckResponse:
        header = request.attributes.request.http.headers.get("authorization")
        try:
            await piped_of(header, self._credentials)
        except PipecdError as e:
            return _verdict(*to_status(e))
        return _verdict(grpc.StatusCode.OK, "OK")


def authz_table(cases: UseCases) -> RpcTable[None]:
    """The service that Envoy asks; it needs no credentials, as it only compares them."""
    return RpcTable(SERVICE, [AuthorizationRpcs(cases.credentials)], _anybody)


def _verdict(code: grpc.StatusCode, message: str) -> pb.CheckResponse:
    number: int = code.value[0]
    return pb.CheckResponse(status=pb.CheckResponse.Status(code=number, message=message))


async def _anybody(metadata: Metadata) -> None:
    """The gateway does not say who it is."""
