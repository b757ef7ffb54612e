# SPDX-License-Identifier: Apache-2.0
"""What a notice is about: an application, a deployment and a stage of it, or piped itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from pipecd.model.application import ApplicationKind
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Subject:
    """The parts of the facts that people ask for; piped's own notices have no application."""

    project: str
    application_id: str = ""
    application: str = ""
    labels: Mapping[str, str] | None = None
    platform: str = ""
    """The kind of an application of the first generation; later ones have none."""
    remote: str = ""
    """The repository that the application is in."""
    deployment: Deployment | None = None
    stage: PipelineStage | None = None
    state: ApplicationSyncState | None = None


def subject_of(facts: Message) -> Subject:
    """Finds what the facts are about; each kind of notice has a message type of its own."""
    if (deployment := _part(facts, Deployment)) is not None:
        return Subject(
            project=deployment.project_id,
            application_id=deployment.application_id,
            application=deployment.application_name,
            labels=deployment.labels,
            platform=_platform(deployment),
            remote=deployment.git_path.repo.remote,
            deployment=deployment,
            stage=_part(facts, PipelineStage),
        )
    if (application := _part(facts, Application)) is not None:
        return Subject(
            project=application.project_id,
            application_id=application.id,
            application=application.name,
            labels=application.labels,
            platform=_platform(application),
            remote=application.git_path.repo.remote,
            state=_part(facts, ApplicationSyncState),
        )
    return Subject(project=said(facts, "project_id"))


def said(facts: Message, name: str) -> str:
    """A text of the facts, or nothing where this kind of notice has none of that name."""
    return str(getattr(facts, name)) if name in facts.DESCRIPTOR.fields_by_name else ""


def _platform(of: Deployment | Application) -> str:
    if not of.platform_provider and not of.cloud_provider:
        return ""
    try:
        return ApplicationKind(of.kind).name
    except ValueError:
        return ""


def _part(facts: Message, kind: type[M]) -> M | None:
    return next((value for _, value in facts.ListFields() if isinstance(value, kind)), None)
