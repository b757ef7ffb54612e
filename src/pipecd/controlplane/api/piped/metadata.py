# SPDX-License-Identifier: Apache-2.0
"""What deployments and stages note for later."""

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.service import piped_pb2 as pb


class MetadataRpcs:
    """The RPCs that merge metadata."""

    def __init__(self, cases: UseCases) -> None:
        self._reports = cases.deployment_reports

    async def SaveDeploymentMetadata(
        self, request: pb.SaveDeploymentMetadataRequest, caller: PipedCaller
    ) -> pb.SaveDeploymentMetadataResponse:
        await self._reports.save_metadata(request.deployment_id, request.metadata, by=caller)
        return pb.SaveDeploymentMetadataResponse()

    async def SaveDeploymentSharedMetadata(
        self, request: pb.SaveDeploymentSharedMetadataRequest, caller: PipedCaller
    ) -> pb.SaveDeploymentSharedMetadataResponse:
        await self._reports.save_shared_metadata(request.deployment_id, request.metadata, by=caller)
        return pb.SaveDeploymentSharedMetadataResponse()

    async def SaveDeploymentPluginMetadata(
        self, request: pb.SaveDeploymentPluginMetadataRequest, caller: PipedCaller
    ) -> pb.SaveDeploymentPluginMetadataResponse:
        await self._reports.save_plugin_metadata(
            request.deployment_id, request.plugin_name, request.metadata, by=caller
        )
        return pb.SaveDeploymentPluginMetadataResponse()

    async def SaveStageMetadata(
        self, request: pb.SaveStageMetadataRequest, caller: PipedCaller
    ) -> pb.SaveStageMetadataResponse:
        await self._reports.save_stage_metadata(
            request.deployment_id, request.stage_id, request.metadata, by=caller
        )
        return pb.SaveStageMetadataResponse()
