# SPDX-License-Identifier: Apache-2.0
"""A deployment that never was, complete enough for every plugin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.model.clock import to_unix, utc_now
from pipecd.proto.model import common_pb2, deployment_pb2
from pipecd.proto.plugin import source_pb2

APPLICATION = "{apiVersion: pipecd.dev/v1beta1, kind: Application, spec: {name: tested}}"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The application in a directory, deployed by one plugin."""

    plugin: str
    directory: Path
    targets: Sequence[str] = ()
    commit: str = "c0ffee"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    commander: str = ""
    config: str = APPLICATION
    application_id: str = "application-1"

    def deployment(self) -> deployment_pb2.Deployment:
        """The deployment of the commit."""
        now = to_unix(utc_now())
        targets = deployment_pb2.DeployTargets(deploy_targets=self.targets)
        return deployment_pb2.Deployment(
            id="deployment-1",
            application_id=self.application_id,
            application_name="tested",
            project_id="project-1",
            piped_id="piped-1",
            labels=self.labels,
            git_path=common_pb2.ApplicationGitPath(
                repo=common_pb2.ApplicationGitRepository(id="repo", remote="https://git.example/x"),
                path="app",
            ),
            deploy_targets_by_plugin={self.plugin: targets},
            trigger=deployment_pb2.DeploymentTrigger(
                commit=deployment_pb2.Commit(
                    hash=self.commit,
                    message="a change",
                    author="ann",
                    branch="main",
                    created_at=now,
                ),
                commander=self.commander,
                timestamp=now,
            ),
            summary="a summary",
            created_at=now,
            updated_at=now,
        )

    def source(self) -> source_pb2.DeploymentSource:
        """The files of the commit."""
        return source_pb2.DeploymentSource(
            application_directory=str(self.directory),
            commit_hash=self.commit,
            application_config=self.config.encode(),
            application_config_filename="app.pipecd.yaml",
            shared_config_directory=str(self.directory / ".pipe"),
        )

    def stage(
        self, name: str, *, index: int = 0, is_rollback: bool = False
    ) -> deployment_pb2.PipelineStage:
        """A stage of the deployment."""
        now = to_unix(utc_now())
        return deployment_pb2.PipelineStage(
            id=f"stage-{index}",
            name=name,
            index=index,
            rollback=is_rollback,
            created_at=now,
            updated_at=now,
        )
