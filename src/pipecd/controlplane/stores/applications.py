# SPDX-License-Identifier: Apache-2.0
"""Applications, as a control plane must be able to find them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pipecd.controlplane.stores.documents import EVERYTHING, Documents, Page, PageRequest
from pipecd.proto.model.application_pb2 import Application


@dataclass(frozen=True)
class ApplicationFilter:
    """Empty fields and None do not filter; deleted applications are never listed."""

    project: str
    enabled: bool | None = None
    kinds: tuple[int, ...] = ()
    sync_statuses: tuple[int, ...] = ()
    name: str = ""
    piped_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Applications(Documents[Application], Protocol):
    """Every application of every project."""

    async def enabled_of(self, project: str, piped_id: str) -> tuple[Application, ...]:
        """What a piped has to look after."""
        ...

    async def listed(
        self, wanted: ApplicationFilter, page: PageRequest = EVERYTHING
    ) -> Page[Application]:
        """Newest update first, then by id."""
        ...

    def everywhere(self) -> AsyncIterator[tuple[Application, ...]]:
        """All of every project in parts, oldest first, deleted ones included."""
        ...
