# SPDX-License-Identifier: Apache-2.0
"""What stages keep per application from one deployment to the next."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.shared_objects import SharedObject
from pipecd.proto.service import piped_pb2 as pb


class ObjectRpcs:
    """The RPCs about analysis results and shared objects."""

    def __init__(self, cases: UseCases) -> None:
        self._objects = cases.objects

    async def GetLatestAnalysisResult(
        self, request: pb.GetLatestAnalysisResultRequest, caller: PipedCaller
    ) -> pb.GetLatestAnalysisResultResponse:
        result = await self._objects.analysis_result(request.application_id, by=caller)
        return pb.GetLatestAnalysisResultResponse(analysis_result=result)

    async def PutLatestAnalysisResult(
        self, request: pb.PutLatestAnalysisResultRequest, caller: PipedCaller
    ) -> pb.PutLatestAnalysisResultResponse:
        await self._objects.put_analysis_result(
            request.application_id, request.analysis_result, by=caller
        )
        return pb.PutLatestAnalysisResultResponse()

    async def GetApplicationSharedObject(
        self, request: pb.GetApplicationSharedObjectRequest, caller: PipedCaller
    ) -> pb.GetApplicationSharedObjectResponse:
        name = SharedObject(request.application_id, request.plugin_name, request.key)
        content = await self._objects.get(name, by=caller)
        return pb.GetApplicationSharedObjectResponse(object=content)

    async def PutApplicationSharedObject(
        self, request: pb.PutApplicationSharedObjectRequest, caller: PipedCaller
    ) -> pb.PutApplicationSharedObjectResponse:
        name = SharedObject(request.application_id, request.plugin_name, request.key)
        await self._objects.put(name, request.object, by=caller)
        return pb.PutApplicationSharedObjectResponse()
