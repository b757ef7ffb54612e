# SPDX-License-Identifier: Apache-2.0
"""The number of applications, by kind and by whether they are enabled."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipecd.controlplane.insight.deployments import Labels, sorted_labels
from pipecd.controlplane.insight.files import go_json
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application

ENABLED, DISABLED = "ENABLED", "DISABLED"


@dataclass(frozen=True)
class ApplicationData:
    """An application as the insight file stores it."""

    id: str
    labels: Labels
    kind: str
    status: str


@dataclass(frozen=True)
class ApplicationSnapshot:
    """All applications of a project at one time."""

    applications: tuple[ApplicationData, ...]
    updated_at: int


def application_data(application: Application) -> ApplicationData:
    """The data to store about an application."""
    # A kind that PipeCD removed has no name any more.
    kind = common.ApplicationKind.DESCRIPTOR.values_by_number.get(application.kind)
    return ApplicationData(
        id=application.id,
        labels=sorted_labels(application.labels),
        kind=kind.name if kind else str(application.kind),
        status=DISABLED if application.disabled else ENABLED,
    )


def applications_path(project: str) -> str:
    return f"insights/{project}/applications/applications.json"


def encode_applications(snapshot: ApplicationSnapshot) -> bytes:
    entries: list[dict[str, Any]] = [
        {
            "id": application.id,
            "labels": dict(application.labels) or None,
            "kind": application.kind,
            "status": application.status,
        }
        for application in snapshot.applications
    ]
    return go_json({"applications": entries, "updated_at": snapshot.updated_at})


def decode_applications(content: bytes) -> ApplicationSnapshot:
    """Decodes the file; raises ValueError or KeyError if it is invalid."""
    document: Mapping[str, Any] = json.loads(content)
    entries: list[Mapping[str, Any]] = document.get("applications") or []
    return ApplicationSnapshot(
        tuple(
            ApplicationData(
                str(entry["id"]),
                sorted_labels(entry.get("labels")),
                str(entry["kind"]),
                str(entry["status"]),
            )
            for entry in entries
        ),
        int(document.get("updated_at", 0)),
    )


def count_applications(applications: Iterable[ApplicationData]) -> dict[tuple[str, str], int]:
    """The number of applications of each kind and status, sorted by both."""
    return dict(sorted(Counter((one.kind, one.status) for one in applications).items()))
