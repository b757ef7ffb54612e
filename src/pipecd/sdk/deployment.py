# SPDX-License-Identifier: Apache-2.0
"""What piped passes to a plugin: the deployment, its sources and its deploy targets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pipecd.config.catalog import load_catalog
from pipecd.config.read import ApplicationConfig, read_application
from pipecd.config.shared_config import read_shared
from pipecd.model.clock import from_unix
from pipecd.model.errors import UserMistake
from pipecd.program.contained_file import read_contained
from pipecd.proto.model import deployment_pb2 as model_pb
from pipecd.proto.plugin import source_pb2
from pipecd.sdk.options import OptionsT, decode_value

# A push may change hundreds of applications, and piped calls a plugin several times for each.
_CACHED_FILES = 250


@dataclass(frozen=True)
class Commit:
    """The commit of a deployment."""

    hash: str
    message: str
    author: str
    branch: str
    pull_request: int = 0
    url: str = ""


@dataclass(frozen=True)
class Deployment:
    """A deployment: its application, commit and trigger."""

    id: str
    application_id: str
    application_name: str
    project_id: str
    piped_id: str
    labels: Mapping[str, str]
    repository_url: str
    commit: Commit
    commander: str
    summary: str
    running_commit: str
    created_at: datetime
    triggered_at: datetime
    target_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    skipped_stages: frozenset[int] = frozenset()
    """The indexes of the stages of the pipeline that were skipped, for example by `skipOn`."""

    @classmethod
    def of(cls, message: model_pb.Deployment) -> "Deployment":
        """Reads the message."""
        trigger = message.trigger
        return cls(
            id=message.id,
            application_id=message.application_id,
            application_name=message.application_name,
            project_id=message.project_id,
            piped_id=message.piped_id,
            labels=dict(message.labels),
            repository_url=message.git_path.repo.remote,
            commit=Commit(
                hash=trigger.commit.hash,
                message=trigger.commit.message,
                author=trigger.commit.author,
                branch=trigger.commit.branch,
                pull_request=trigger.commit.pull_request,
                url=trigger.commit.url,
            ),
            commander=trigger.commander,
            summary=message.summary,
            running_commit=message.running_commit_hash,
            created_at=from_unix(message.created_at),
            triggered_at=from_unix(trigger.timestamp),
            target_names={
                plugin: tuple(targets.deploy_targets)
                for plugin, targets in message.deploy_targets_by_plugin.items()
            },
            skipped_stages=frozenset(
                stage.index
                for stage in message.stages
                if stage.status == model_pb.STAGE_SKIPPED and not stage.rollback
            ),
        )


@dataclass(frozen=True)
class Source:
    """A commit as a working copy, with decrypted secrets."""

    application_directory: Path
    commit: str
    config: bytes
    config_filename: str
    shared_config_directory: Path

    @classmethod
    def of(cls, message: source_pb2.DeploymentSource) -> "Source":
        """Reads the message."""
        return cls(
            application_directory=Path(message.application_directory),
            commit=message.commit_hash,
            config=message.application_config,
            config_filename=message.application_config_filename,
            shared_config_directory=Path(message.shared_config_directory),
        )

    @property
    def working_copy(self) -> Path:
        """The root of the working copy; no file outside of it belongs to the commit."""
        return self.shared_config_directory.parent

    @property
    def kind(self) -> str:
        """The kind of the application's file; every one but `Application` is of version 0."""
        return _read(self.config, self.config_filename).kind

    def application_settings(self, plugin: str, settings: type[OptionsT]) -> OptionsT:
        """Reads the section of a plugin in the application's file, of either generation."""
        read = _read(self.config, self.config_filename)
        return decode_value(
            settings, read.spec.plugins.get(plugin) or {}, what=f"spec.plugins.{plugin}"
        )

    def ignored_fields(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the fields in `driftDetection.ignoreFields`, by the key of the object."""
        read = _read(self.config, self.config_filename)
        drift = read.spec.drift_detection
        return drift.ignored_by_resource() if drift else {}

    def stage_names(self) -> tuple[str, ...]:
        """Returns the names of the stages of the application's pipeline, in order."""
        read = _read(self.config, self.config_filename)
        return tuple(stage.name for stage in read.spec.pipeline.stages)

    def shared_config(self, kind: str, spec: type[OptionsT]) -> OptionsT | None:
        """Reads a file under `.pipe/`, which all applications of the repository share.

        If several files have the kind, the first by name is used. A file that cannot be parsed is
        an error only if no other file has the kind.
        """
        return read_shared(self.shared_config_directory, kind, spec, read=self._read)

    def _read(self, path: Path) -> bytes:
        try:
            return read_contained(self.working_copy, path)
        except UserMistake as e:
            name = path.relative_to(self.working_copy)
            raise UserMistake(f"{name} cannot be read: {e.message}") from e


@dataclass(frozen=True)
class DeployTarget:
    """A deploy target of a plugin, such as a cluster."""

    name: str
    labels: Mapping[str, str]
    config: Mapping[str, Any]

    def settings(self, settings: type[OptionsT]) -> OptionsT:
        """Reads the settings of this target."""
        return decode_value(settings, self.config, what=f"deploy target {self.name}")


@dataclass(frozen=True)
class PluginEntry:
    """The plugin's entry in the configuration of piped."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    targets: tuple[DeployTarget, ...] = ()

    def settings(self, settings: type[OptionsT]) -> OptionsT:
        """Reads the settings of the plugin."""
        return decode_value(settings, self.config, what=f"config of plugin {self.name}")


@lru_cache(maxsize=_CACHED_FILES)
def _read(config: bytes, filename: str) -> ApplicationConfig:
    return read_application(config, file=filename, catalog=_catalog())


_catalog = cache(load_catalog)
