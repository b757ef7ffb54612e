# SPDX-License-Identifier: Apache-2.0
"""What a plugin remembers between stages, restarts and deployments."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipecd.model.errors import NotFound
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.sdk.host import Host


@dataclass(frozen=True)
class StageMetadata:
    """Texts kept with one stage; they survive a restart of piped."""

    host: Host
    deployment_id: str
    stage_id: str

    async def get(self, key: str) -> str | None:
        """The text of the key, or None."""
        answer = await self.host.GetStageMetadata(
            pb.GetStageMetadataRequest(
                deployment_id=self.deployment_id, stage_id=self.stage_id, key=key
            )
        )
        return answer.value if answer.found else None

    async def put(self, values: Mapping[str, str]) -> None:
        """Keeps the texts, beside those that are there."""
        await self.host.PutStageMetadataMulti(
            pb.PutStageMetadataMultiRequest(
                deployment_id=self.deployment_id, stage_id=self.stage_id, metadata=values
            )
        )


@dataclass(frozen=True)
class DeploymentMetadata:
    """Texts that the stages of one plugin share within a deployment."""

    host: Host
    deployment_id: str
    plugin: str

    async def get(self, key: str) -> str | None:
        """The text of the key, or None."""
        answer = await self.host.GetDeploymentPluginMetadata(
            pb.GetDeploymentPluginMetadataRequest(
                deployment_id=self.deployment_id, plugin_name=self.plugin, key=key
            )
        )
        return answer.value if answer.found else None

    async def put(self, values: Mapping[str, str]) -> None:
        """Keeps the texts, beside those that are there."""
        await self.host.PutDeploymentPluginMetadataMulti(
            pb.PutDeploymentPluginMetadataMultiRequest(
                deployment_id=self.deployment_id, plugin_name=self.plugin, metadata=values
            )
        )

    async def of_all_plugins(self, key: str) -> str | None:
        """What the deployment was created with, such as whom to notify."""
        answer = await self.host.GetDeploymentSharedMetadata(
            pb.GetDeploymentSharedMetadataRequest(deployment_id=self.deployment_id, key=key)
        )
        return answer.value if answer.found else None


@dataclass(frozen=True)
class ApplicationObjects:
    """Bytes that a plugin keeps with an application, from one deployment to the next."""

    host: Host
    application_id: str
    plugin: str

    async def get(self, key: str) -> bytes | None:
        """The bytes of the key, or None."""
        request = pb.GetApplicationSharedObjectRequest(
            application_id=self.application_id, plugin_name=self.plugin, key=key
        )
        try:
            return (await self.host.GetApplicationSharedObject(request)).object
        except NotFound:
            return None

    async def put(self, key: str, value: bytes) -> None:
        """Keeps the bytes, in place of those that are there."""
        await self.host.PutApplicationSharedObject(
            pb.PutApplicationSharedObjectRequest(
                application_id=self.application_id, plugin_name=self.plugin, key=key, object=value
            )
        )
