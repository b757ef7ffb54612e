# SPDX-License-Identifier: Apache-2.0
"""How many applications there are, by kind and by whether they are enabled."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipecd.controlplane.insight.finished import Labels, in_order
from pipecd.controlplane.insight.gojson import go_json
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application

ENABLED, DISABLED = "ENABLED", "DISABLED"


@dataclass(frozen=True)
class CountedApplication:
    """An application as the file of insights remembers it."""

    id: str
    labels: Labels
    kind: str
    status: str


@dataclass(frozen=True)
class ApplicationBook:
    """All applications of a project at some moment."""

    applications: tuple[CountedApplication, ...]
    updated_at: int


def counted(application: Application) -> CountedApplication:
    return CountedApplication(
        id=application.id,
        labels=in_order(application.labels),
        kind=_kind(application.kind),
        status=DISABLED if application.disabled else ENABLED,
    )


def book_path(project: str) -> str:
    return f"insights/{project}/applications/applications.json"


def write_book(book: ApplicationBook) -> bytes:
    entries: list[dict[str, Any]] = [
        {
            "id": one.id,
            "labels": dict(one.labels) or None,
            "kind": one.kind,
            "status": one.status,
        }
        for one in book.applications
    ]
    return go_json({"applications": entries, "updated_at": book.updated_at})


def read_book(content: bytes) -> ApplicationBook:
    """Reads the file; ValueError or KeyError when it is none."""
    document: Mapping[str, Any] = json.loads(content)
    entries: list[Mapping[str, Any]] = document.get("applications") or []
    return ApplicationBook(
        tuple(
            CountedApplication(
                str(entry["id"]),
                in_order(entry.get("labels")),
                str(entry["kind"]),
                str(entry["status"]),
            )
            for entry in entries
        ),
        int(document.get("updated_at", 0)),
    )


def counts(applications: Iterable[CountedApplication]) -> dict[tuple[str, str], int]:
    """How many there are of each kind and status, in the order of their names."""
    return dict(sorted(Counter((one.kind, one.status) for one in applications).items()))


def _kind(number: int) -> str:
    # A kind that was dropped since has no name any more.
    known = common.ApplicationKind.DESCRIPTOR.values_by_number.get(number)
    return known.name if known else str(number)
