# SPDX-License-Identifier: Apache-2.0
"""Pipeds, for programs."""

from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import api_pb2 as pb


class PipedRpcs:
    """The RPCs about pipeds."""

    def __init__(self, cases: UseCases) -> None:
        self._pipeds, self._encryption = cases.pipeds, cases.encryption

    async def GetPiped(
        self, request: pb.GetPipedRequest, caller: ApiKeyCaller
    ) -> pb.GetPipedResponse:
        return pb.GetPipedResponse(piped=await self._pipeds.get(request.piped_id, by=caller))

    async def RegisterPiped(
        self, request: pb.RegisterPipedRequest, caller: ApiKeyCaller
    ) -> pb.RegisterPipedResponse:
        registered = await self._pipeds.register(request.name, request.desc, by=caller)
        return pb.RegisterPipedResponse(id=registered.id, key=registered.key)

    async def UpdatePiped(
        self, request: pb.UpdatePipedRequest, caller: ApiKeyCaller
    ) -> pb.UpdatePipedResponse:
        await self._pipeds.update(request.piped_id, request.name, request.desc, by=caller)
        return pb.UpdatePipedResponse()

    async def EnablePiped(
        self, request: pb.EnablePipedRequest, caller: ApiKeyCaller
    ) -> pb.EnablePipedResponse:
        await self._pipeds.enable(request.piped_id, by=caller)
        return pb.EnablePipedResponse()

    async def DisablePiped(
        self, request: pb.DisablePipedRequest, caller: ApiKeyCaller
    ) -> pb.DisablePipedResponse:
        await self._pipeds.disable(request.piped_id, by=caller)
        return pb.DisablePipedResponse()

    async def Encrypt(self, request: pb.EncryptRequest, caller: ApiKeyCaller) -> pb.EncryptResponse:
        sealed = await self._encryption.encrypt(
            request.piped_id,
            request.plaintext,
            base64_encoding=request.base64_encoding,
            by=caller,
        )
        return pb.EncryptResponse(ciphertext=sealed)
