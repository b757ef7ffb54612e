# SPDX-License-Identifier: Apache-2.0
"""Pipeds, for people."""

from pipecd.controlplane.api.web.options import switch
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import web_pb2 as pb


class PipedRpcs:
    """The RPCs about pipeds."""

    def __init__(self, cases: UseCases) -> None:
        self._pipeds = cases.pipeds

    async def RegisterPiped(
        self, request: pb.RegisterPipedRequest, caller: User
    ) -> pb.RegisterPipedResponse:
        registered = await self._pipeds.register(request.name, request.desc, by=caller)
        return pb.RegisterPipedResponse(id=registered.id, key=registered.key)

    async def UpdatePiped(
        self, request: pb.UpdatePipedRequest, caller: User
    ) -> pb.UpdatePipedResponse:
        await self._pipeds.update(request.piped_id, request.name, request.desc, by=caller)
        return pb.UpdatePipedResponse()

    async def RecreatePipedKey(
        self, request: pb.RecreatePipedKeyRequest, caller: User
    ) -> pb.RecreatePipedKeyResponse:
        return pb.RecreatePipedKeyResponse(key=await self._pipeds.add_key(request.id, by=caller))

    async def DeleteOldPipedKeys(
        self, request: pb.DeleteOldPipedKeysRequest, caller: User
    ) -> pb.DeleteOldPipedKeysResponse:
        await self._pipeds.drop_old_keys(request.piped_id, by=caller)
        return pb.DeleteOldPipedKeysResponse()

    async def EnablePiped(
        self, request: pb.EnablePipedRequest, caller: User
    ) -> pb.EnablePipedResponse:
        await self._pipeds.enable(request.piped_id, by=caller)
        return pb.EnablePipedResponse()

    async def DisablePiped(
        self, request: pb.DisablePipedRequest, caller: User
    ) -> pb.DisablePipedResponse:
        await self._pipeds.disable(request.piped_id, by=caller)
        return pb.DisablePipedResponse()

    async def ListPipeds(
        self, request: pb.ListPipedsRequest, caller: User
    ) -> pb.ListPipedsResponse:
        pipeds = await self._pipeds.listed(by=caller, enabled=switch(request.options))
        if not request.with_status:
            for piped in pipeds:
                piped.ClearField("status")
        return pb.ListPipedsResponse(pipeds=pipeds)

    async def GetPiped(self, request: pb.GetPipedRequest, caller: User) -> pb.GetPipedResponse:
        return pb.GetPipedResponse(piped=await self._pipeds.get(request.piped_id, by=caller))

    async def UpdatePipedDesiredVersion(
        self, request: pb.UpdatePipedDesiredVersionRequest, caller: User
    ) -> pb.UpdatePipedDesiredVersionResponse:
        await self._pipeds.desire_version(request.version, request.piped_ids, by=caller)
        return pb.UpdatePipedDesiredVersionResponse()

    async def RestartPiped(
        self, request: pb.RestartPipedRequest, caller: User
    ) -> pb.RestartPipedResponse:
        command = await self._pipeds.restart(request.piped_id, by=caller)
        return pb.RestartPipedResponse(command_id=command)
