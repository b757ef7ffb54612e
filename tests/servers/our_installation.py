# SPDX-License-Identifier: Apache-2.0
"""An installation with a control plane of ours in the process of the test."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped
from servers.control_plane import ServedControlPlane
from servers.installation import Installation
from servers.origin import Origin


class OurInstallation(Installation):
    """One control plane of ours with one repository, and the programs that are tried on it."""

    def __init__(self, plane: ServedControlPlane, origin: Origin, directory: Path) -> None:
        self.plane, self.cases, self.stores = plane, plane.running.cases, plane.running.stores
        self.admin, self.address = plane.admin, plane.address
        super().__init__(origin, directory)

    async def register(self, name: str) -> tuple[str, str]:
        registered = await self.cases.pipeds.register(name, "", by=self.admin)
        return registered.id, registered.key

    async def deployments(self) -> list[Deployment]:
        page = await self.cases.deployments.list(DeploymentFilter(project="demo"), by=self.admin)
        return list(page.items)

    async def add_application(self, path: str, draft: Application) -> str:
        """Registers an application, also before its piped has reported its repositories."""
        repository = ApplicationGitRepository(id="site", remote=self.origin.remote, branch="main")

        def describe(piped: Piped) -> None:
            del piped.repositories[:]
            piped.repositories.append(repository)

        await self.stores.pipeds.update(draft.piped_id, describe)
        draft.git_path.CopyFrom(
            ApplicationGitPath(repo=repository, path=path, config_filename="app.pipecd.yaml")
        )
        id_: str = await self.cases.applications.add(draft, by=self.admin)
        return id_

    def pipectl_flags(self) -> list[str]:
        return ["--address", self.plane.address, "--api-key", self.plane.api_key, "--insecure"]

    async def introduced(self, piped_id: str) -> Piped | None:
        """Returns a piped once it has reported its metadata."""
        piped: Piped = await self.stores.pipeds.get(piped_id)
        return piped if piped.started_at else None

    async def is_online(self, piped_id: str) -> bool:
        listed = await self.cases.pipeds.list(by=self.admin)
        return any(p.id == piped_id and p.status == Piped.ONLINE for p in listed)

    async def logs(self, deployment: Deployment) -> dict[str, str]:
        """The whole log of every stage, by the name of the stage."""
        parts = await self.cases.logs.of_deployment(deployment.id, by=self.admin)
        names = {stage.id: stage.name for stage in deployment.stages}
        assert all(part.completed for part in parts.values() if part.blocks)
        return {
            names[id_]: "\n".join(block.log for block in part.blocks) for id_, part in parts.items()
        }


OpenInstallation = Callable[..., AbstractAsyncContextManager[OurInstallation]]
