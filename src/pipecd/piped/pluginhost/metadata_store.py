# SPDX-License-Identifier: Apache-2.0
"""The metadata of deployments, stages and plugins that plugins read and write."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pipecd.model.errors import NotFound
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import piped_pb2


class MetadataStore:
    """The metadata of running deployments, in memory and written through to the control plane.

    For any other deployment every method raises `NotFound`.
    """

    def __init__(self, api: ControlPlaneClient) -> None:
        self._api = api
        self._deployments: dict[str, Deployment] = {}

    @contextmanager
    def open(self, deployment: Deployment) -> Iterator[None]:
        """Makes the metadata of the deployment available to plugins while the block runs.

        What plugins write also changes `deployment`, so that the next stage receives it.
        """
        self._deployments[deployment.id] = deployment
        try:
            yield
        finally:
            del self._deployments[deployment.id]

    def of_stage(self, deployment_id: str, stage_id: str) -> Mapping[str, str]:
        return self._stage(deployment_id, stage_id).metadata

    def of_plugin(self, deployment_id: str, plugin: str) -> Mapping[str, str]:
        """The metadata of a plugin; a first-generation piped has stored its own without a name."""
        deployment = self._deployment(deployment_id)
        plugins = deployment.metadata_v2.plugins
        own: Mapping[str, str] = plugins[plugin].keyValues if plugin in plugins else {}
        return {**deployment.metadata, **own}

    def shared(self, deployment_id: str) -> Mapping[str, str]:
        return self._deployment(deployment_id).metadata_v2.shared.keyValues

    async def put_stage(self, deployment_id: str, stage_id: str, values: Mapping[str, str]) -> None:
        stage = self._stage(deployment_id, stage_id)
        stage.metadata.update(values)
        await self._api.save_stage_metadata(
            piped_pb2.SaveStageMetadataRequest(
                deployment_id=deployment_id, stage_id=stage_id, metadata=stage.metadata
            )
        )

    async def put_plugin(self, deployment_id: str, plugin: str, values: Mapping[str, str]) -> None:
        metadata = self._deployment(deployment_id).metadata_v2.plugins[plugin].keyValues
        metadata.update(values)
        await self._api.save_deployment_plugin_metadata(
            piped_pb2.SaveDeploymentPluginMetadataRequest(
                deployment_id=deployment_id, plugin_name=plugin, metadata=metadata
            )
        )

    def _deployment(self, deployment_id: str) -> Deployment:
        if deployment_id not in self._deployments:
            raise NotFound(f"metadata store not found for deployment {deployment_id}")
        return self._deployments[deployment_id]

    def _stage(self, deployment_id: str, stage_id: str) -> PipelineStage:
        for stage in self._deployment(deployment_id).stages:
            if stage.id == stage_id:
                return stage
        raise NotFound(f"deployment {deployment_id} has no stage {stage_id}")
