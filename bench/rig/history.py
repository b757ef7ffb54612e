# SPDX-License-Identifier: Apache-2.0
"""A year of an installation: ten thousand applications and two hundred thousand deployments.

The rows are written in bulk, in the format of the stores. Most of them belong to one large project;
a small project measures lists of few documents in large tables.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Table, insert

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.documents import ADD_LABEL, label_rows
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.query import row_id
from pipecd.controlplane.datastore.schema import APPLICATION, DEPLOYMENT
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.document import to_json
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.common_pb2 import ApplicationKind
from pipecd.proto.model.deployment_pb2 import DeploymentStatus as Status
from rig.seed import CREATED_AT, deployment

LARGE, SMALL = "large", "small"
YEAR = 365 * 24 * 3600
PIPEDS = 50
AT_ONCE = 2000
RUNNING = 40
KINDS = tuple(ApplicationKind.values())


@dataclass(frozen=True)
class Scale:
    """The size of the history; one application in twenty belongs to the small project."""

    applications: int = 10_000
    deployments: int = 200_000

    def project(self, number: int) -> str:
        return SMALL if number % 20 == 0 else LARGE


def id_of(kind: str, number: int) -> str:
    """Returns the id of the nth object of a kind."""
    return f"00000000-0000-4000-8{ord(kind[0]):03x}-{number:012x}"


def labels_of(number: int) -> dict[str, str]:
    """Returns three labels: one that all share, one of a third, and one of few."""
    return {"org": "acme", "env": ("dev", "stg", "prod")[number % 3], "team": f"t{number % 200}"}


async def write_history(database: Database, scale: Scale) -> None:
    """Fills the tables."""
    for table, documents in (
        (APPLICATION, _applications(scale)),
        (DEPLOYMENT, _deployments(scale)),
    ):
        part: list[tuple[str, str, Mapping[str, str]]] = []
        for document in documents:
            part.append(document)
            if len(part) == AT_ONCE:
                await database.write(lambda writing, t=table, p=tuple(part): _add(writing, t, p))
                part = []
        await database.write(lambda writing, t=table, p=tuple(part): _add(writing, t, p))


def _add(
    writing: Transaction, table: Table, part: Sequence[tuple[str, str, Mapping[str, str]]]
) -> None:
    if not part:
        return
    add = insert(table).values(Id=param("id"), Data=param("data"))
    writing.execute_many(add, [{"id": row_id(id), "data": text} for id, text, _ in part])
    labels: list[Values] = []
    for id, _, of in part:
        labels += label_rows(table.name, row_id(id), of)
    writing.execute_many(ADD_LABEL, labels)


def _applications(scale: Scale) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    chance = random.Random(1)
    for number in range(scale.applications):
        labels, name = labels_of(number), f"app-{number}"
        document = Application(
            id=id_of("application", number),
            name=name,
            piped_id=id_of("piped", number % PIPEDS),
            project_id=scale.project(number),
            kind=KINDS[number % len(KINDS)],
            labels=labels,
            disabled=number % 100 == 7,
            description="An application among many.",
            sync_state=ApplicationSyncState(status=1 + (number % 50 == 3), timestamp=CREATED_AT),  # type: ignore[arg-type]
            created_at=CREATED_AT,
            updated_at=CREATED_AT + chance.randrange(YEAR),
        )
        document.git_path.CopyFrom(deployment("a", "p").git_path)
        yield document.id, to_json(document, extra=name), labels


def _deployments(scale: Scale) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    chance = random.Random(2)
    for number in range(scale.deployments):
        of = number % scale.applications
        labels, name = labels_of(of), f"app-{of}"
        moment = CREATED_AT + YEAR * number // scale.deployments + chance.randrange(3600)
        document = deployment(id_of("application", of), id_of("piped", of % PIPEDS))
        document.id = id_of("deployment", number)
        document.project_id = scale.project(of)
        document.application_name = name
        document.kind = KINDS[of % len(KINDS)]
        document.labels.clear()
        document.labels.update(labels)
        document.deployment_trace_commit_hash = f"{number // 3:040x}"
        document.created_at = document.updated_at = moment
        document.status = _status(number, scale)
        if DeploymentStatus(document.status).is_completed:
            document.completed_at = moment
        yield document.id, to_json(document, extra=name), labels


def _status(number: int, scale: Scale) -> Status.ValueType:
    """Most deployments succeeded, some failed, and a few, including the newest, are running."""
    if number % (scale.deployments // RUNNING) == 0:
        return Status.DEPLOYMENT_RUNNING
    return {0: Status.DEPLOYMENT_FAILURE, 1: Status.DEPLOYMENT_CANCELLED}.get(
        number % 37, Status.DEPLOYMENT_SUCCESS
    )
