# SPDX-License-Identifier: Apache-2.0
"""API keys, for people."""

from pipecd.controlplane.api.web.options import switch
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import web_pb2 as pb


class ApiKeyRpcs:
    """The RPCs about API keys."""

    def __init__(self, cases: UseCases) -> None:
        self._api_keys = cases.api_keys

    async def GenerateAPIKey(
        self, request: pb.GenerateAPIKeyRequest, caller: User
    ) -> pb.GenerateAPIKeyResponse:
        key = await self._api_keys.generate(request.name, request.role, by=caller)
        return pb.GenerateAPIKeyResponse(key=key)

    async def DisableAPIKey(
        self, request: pb.DisableAPIKeyRequest, caller: User
    ) -> pb.DisableAPIKeyResponse:
        await self._api_keys.disable(request.id, by=caller)
        return pb.DisableAPIKeyResponse()

    async def ListAPIKeys(
        self, request: pb.ListAPIKeysRequest, caller: User
    ) -> pb.ListAPIKeysResponse:
        keys = await self._api_keys.listed(by=caller, enabled=switch(request.options))
        return pb.ListAPIKeysResponse(keys=keys)
