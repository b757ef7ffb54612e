# SPDX-License-Identifier: Apache-2.0
"""The files of an application: its task definition and its service definition."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipecd.plugins.ecs.config import EcsApplication
from pipecd.sdk import Source, UserMistake
from pipecd.sdk.aws_documents import Fitted, fit, go_names
from pipecd.sdk.diff import is_map
from pipecd.sdk.files import read_contained
from pipecd.sdk.images import Image
from pipecd.sdk.unstructured import Body, list_at, map_at, text_at
from pipecd.sdk.yaml import read_documents

EXTERNAL, ROLLING = "EXTERNAL", "ECS"
# The console of AWS and its command line show a service with these names.
_ALIASES = {"clusterarn": "cluster", "rolearn": "role"}
# What AWS adds when it shows a definition; people copy such documents into their repository.
_SHOWN_BY_AWS = frozenset(
    {
        *("compatibilities", "deregisteredat", "registeredat", "registeredby", "revision"),
        *("requiresattributes", "status", "taskdefinitionarn"),
        *("createdat", "createdby", "deployments", "events", "pendingcount", "platformfamily"),
        *("runningcount", "servicearn", "tasksets"),
    }
)


@dataclass(frozen=True)
class TaskDefinition:
    """A task definition as it is registered."""

    document: Body

    @property
    def family(self) -> str:
        """The name under which the revisions are registered."""
        return text_at(self.document, "family")

    @property
    def images(self) -> dict[str, Image]:
        """The images of the containers, by the name of the container."""
        return {
            text_at(container, "name"): Image.of(text_at(container, "image"))
            for container in list_at(self.document, "containerDefinitions")
            if text_at(container, "image")
        }

    def shown(self) -> dict[str, Any]:
        """Returns the document with the names of fields that people see."""
        return go_names("ecs", "RegisterTaskDefinitionRequest", self.document)


@dataclass(frozen=True)
class ServiceDefinition:
    """A service definition with the names of a request that creates it."""

    document: Body

    @property
    def cluster(self) -> str:
        """The name or ARN of the cluster."""
        return text_at(self.document, "cluster") or "default"

    @property
    def name(self) -> str:
        """The name of the service."""
        return text_at(self.document, "serviceName")

    @property
    def controller(self) -> str:
        """Who starts the tasks: EXTERNAL with task sets, ECS itself with rolling updates."""
        return text_at(map_at(self.document, "deploymentController"), "type") or ROLLING

    @property
    def desired_count(self) -> int:
        """The number of tasks; 0 leaves it as it is, for example to autoscaling."""
        return int(self.document.get("desiredCount") or 0)

    @cached_property
    def tags(self) -> dict[str, str]:
        """The tags of the file."""
        return {
            text_at(tag, "key"): text_at(tag, "value") for tag in list_at(self.document, "tags")
        }

    def shown(self) -> dict[str, Any]:
        """Returns the document with the names of fields that people see."""
        renamed = go_names("ecs", "CreateServiceRequest", self.document)
        if "Cluster" in renamed:
            renamed["ClusterArn"] = renamed.pop("Cluster")
        if "Role" in renamed:
            renamed["RoleArn"] = renamed.pop("Role")
        return renamed


@dataclass(frozen=True)
class Definitions:
    """The settings of an application and its files; without a service it is a standalone task."""

    settings: EcsApplication
    task: TaskDefinition
    service: ServiceDefinition | None
    unknown: tuple[str, ...] = ()
    """What the files have and AWS does not know."""


async def load_definitions(source: Source, plugin: str) -> Definitions:
    """Reads the definitions of a commit."""
    settings = source.application_settings(plugin, EcsApplication)
    return await asyncio.to_thread(_load, source, settings)


def _load(source: Source, settings: EcsApplication) -> Definitions:
    given = settings.input
    task = _fitted(source, given.task_definition_file, "RegisterTaskDefinitionRequest")
    for required in ("family", "containerDefinitions"):
        if not task.document.get(required):
            raise UserMistake(
                f"{given.task_definition_file} has no {required}",
                hint="a task definition needs a family and at least one container",
            )
    service = None
    if given.service_definition_file:
        service = _fitted(source, given.service_definition_file, "CreateServiceRequest")
        if not service.document.get("serviceName"):
            raise UserMistake(
                f"{given.service_definition_file} has no serviceName",
                hint="name the service and its cluster",
            )
    unknown = [f"{given.task_definition_file}: {path}" for path in _surprising(task.unknown)]
    if service:
        unknown += [
            f"{given.service_definition_file}: {path}" for path in _surprising(service.unknown)
        ]
    return Definitions(
        settings,
        TaskDefinition(task.document),
        ServiceDefinition(service.document) if service else None,
        tuple(unknown),
    )


def _surprising(unknown: Sequence[str]) -> list[str]:
    return [path for path in unknown if path.lower() not in _SHOWN_BY_AWS]


def _fitted(source: Source, file: str, shape: str) -> Fitted:
    try:
        content = read_contained(source.working_copy, source.application_directory / file)
        text = content.decode()
    except UserMistake as e:
        raise UserMistake(
            f"the file {file} cannot be read: {e.message}",
            hint="correct taskDefinitionFile and serviceDefinitionFile in the input",
        ) from e
    except UnicodeDecodeError as e:
        raise UserMistake(f"the file {file} is not UTF-8") from e
    documents = read_documents(text, file=file)
    value: Any = documents[0].value if documents else None
    if not is_map(value):
        raise UserMistake(f"{file} must be a mapping")
    present = {str(key).lower() for key in value}
    renamed = {
        alias if (alias := _ALIASES.get(str(key).lower())) and alias not in present else key: child
        for key, child in value.items()
    }
    return fit("ecs", shape, renamed)
