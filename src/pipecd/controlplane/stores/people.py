# SPDX-License-Identifier: Apache-2.0
"""Projects, API keys and pipeds: whoever may talk to a control plane."""

from typing import Protocol

from pipecd.controlplane.stores.documents import Documents
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.project_pb2 import Project


class Projects(Documents[Project], Protocol):
    """Every project, by its name."""

    async def listed(self) -> tuple[Project, ...]:
        """All of them, by id."""
        ...


class ApiKeys(Documents[APIKey], Protocol):
    """The keys of pipectl and other programs."""

    async def listed(self, project: str, *, enabled: bool | None = None) -> tuple[APIKey, ...]:
        """Those of a project, oldest first."""
        ...


class Pipeds(Documents[Piped], Protocol):
    """The registered agents."""

    async def listed(self, project: str, *, enabled: bool | None = None) -> tuple[Piped, ...]:
        """Those of a project, oldest first."""
        ...
