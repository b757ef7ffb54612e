# SPDX-License-Identifier: Apache-2.0
"""Metadata of stages, deployments and applications, which outlives a restart of piped."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipecd.model.errors import NotFound
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.sdk.host import Host


@dataclass(frozen=True)
class StageMetadata:
    """The metadata of one stage; it outlives a restart of piped."""

    host: Host
    deployment_id: str
    stage_id: str

    async def get(self, key: str) -> str | None:
        """Returns the value of a key, or None."""
        response = await self.host.GetStageMetadata(
            pb.GetStageMetadataRequest(
                deployment_id=self.deployment_id, stage_id=self.stage_id, key=key
            )
        )
        return response.value if response.found else None

    async def put(self, values: Mapping[str, str]) -> None:
        """Stores values and keeps other keys."""
        await self.host.PutStageMetadataMulti(
            pb.PutStageMetadataMultiRequest(
                deployment_id=self.deployment_id, stage_id=self.stage_id, metadata=values
            )
        )


@dataclass(frozen=True)
class DeploymentMetadata:
    """The metadata that the stages of one plugin share within a deployment."""

    host: Host
    deployment_id: str
    plugin: str

    async def get(self, key: str) -> str | None:
        """Returns the value of a key, or None."""
        response = await self.host.GetDeploymentPluginMetadata(
            pb.GetDeploymentPluginMetadataRequest(
                deployment_id=self.deployment_id, plugin_name=self.plugin, key=key
            )
        )
        return response.value if response.found else None

    async def put(self, values: Mapping[str, str]) -> None:
        """Stores values and keeps other keys."""
        await self.host.PutDeploymentPluginMetadataMulti(
            pb.PutDeploymentPluginMetadataMultiRequest(
                deployment_id=self.deployment_id, plugin_name=self.plugin, metadata=values
            )
        )

    async def of_all_plugins(self, key: str) -> str | None:
        """Returns shared metadata of the deployment, such as users to notify."""
        response = await self.host.GetDeploymentSharedMetadata(
            pb.GetDeploymentSharedMetadataRequest(deployment_id=self.deployment_id, key=key)
        )
        return response.value if response.found else None


@dataclass(frozen=True)
class ApplicationObjects:
    """Objects that a plugin stores with an application, across deployments."""

    host: Host
    application_id: str
    plugin: str

    async def get(self, key: str) -> bytes | None:
        """Returns the object of a key, or None."""
        request = pb.GetApplicationSharedObjectRequest(
            application_id=self.application_id, plugin_name=self.plugin, key=key
        )
        try:
            return (await self.host.GetApplicationSharedObject(request)).object
        except NotFound:
            return None

    async def put(self, key: str, value: bytes) -> None:
        """Stores or replaces the object of a key."""
        await self.host.PutApplicationSharedObject(
            pb.PutApplicationSharedObjectRequest(
                application_id=self.application_id, plugin_name=self.plugin, key=key, object=value
            )
        )
