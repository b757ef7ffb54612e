# SPDX-License-Identifier: Apache-2.0
"""A year of an installation: ten thousand applications and up to a million deployments.

The rows are written in bulk, in the format of the stores. Most of them belong to one large project;
a small project measures lists of few documents in large tables.
"""

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from itertools import islice
from typing import NamedTuple

from sqlalchemy import delete

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.query import row_id
from pipecd.controlplane.datastore.schema import APPLICATION, DEPLOYMENT, EXT_LABEL, EXT_META
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.document import to_json
from pipecd.proto.model.application_pb2 import (
    Application,
    ApplicationSyncState,
    ApplicationSyncStatus,
)
from pipecd.proto.model.common_pb2 import ApplicationKind
from pipecd.proto.model.deployment_pb2 import DeploymentStatus as Status
from rig.bulk import bulk_writer, create_tables
from rig.seed import deployment

LARGE, SMALL = "large", "small"
DAY = 24 * 3600
YEAR = 365 * DAY
# Pages show what happened in the last day or month, so that the year has just ended.
BEGINNING = int(time.time()) // DAY * DAY - YEAR
PIPEDS = 50
AT_ONCE = 2000
RUNNING = 40
KINDS = tuple(ApplicationKind.values())

# Messages are a verb and two nouns, so that frequent words are in an order that none has.
VERBS = (
    "fix",
    "add",
    "remove",
    "update",
    "revert",
    "improve",
    "rename",
    "move",
    "test",
    "document",
    "speed",
)
NOUNS = (
    "login",
    "payment",
    "invoice",
    "cart",
    "search",
    "user",
    "session",
    "token",
    "cache",
    "queue",
    "retry",
    "timeout",
    "metrics",
    "dashboard",
    "header",
    "footer",
    "image",
    "chart",
    "worker",
    "export",
    "import",
    "report",
    "filter",
    "policy",
    "rollout",
    "quota",
    "webhook",
    "gateway",
    "ledger",
    "refund",
    "shipping",
    "address",
    "profile",
    "banner",
    "settings",
    "index",
    "schema",
)
# What only the first month of the year has: a word of messages, and a label of many applications.
OLD_WORD, OLD_LABEL = "cutover", {"generation": "first"}

# The id of a document, its text and its labels.
Document = tuple[str, str, Mapping[str, str]]


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


async def write_history(datastore: DatastoreSpec, scale: Scale) -> None:
    """Fills an empty database."""
    tables = ((APPLICATION, _applications(scale)), (DEPLOYMENT, _deployments(scale)))
    await create_tables(datastore)
    with bulk_writer(datastore) as writer:
        for table, documents in tables:
            for part in _parts(documents):
                writer.write(
                    table.name, ("Id", "Data"), [(row_id(id), data) for id, data, _ in part]
                )
                labels = [
                    (table.name, row_id(id), *label) for id, _, of in part for label in of.items()
                ]
                columns = ("Kind", "DocumentId", "LabelKey", "LabelValue")
                writer.write(EXT_LABEL.name, columns, labels)
    await forget_watermark(datastore)


async def forget_watermark(datastore: DatastoreSpec) -> None:
    """Lets the next open index the labels of the rows, as that of an earlier release."""
    forget = delete(EXT_META).where(EXT_META.c.Name == "labelled_applications")
    async with open_datastore(datastore) as database:
        await database.write(lambda transaction: transaction.execute(forget))


def _parts(documents: Iterable[Document]) -> Iterator[Sequence[Document]]:
    remaining = iter(documents)
    while part := tuple(islice(remaining, AT_ONCE)):
        yield part


def _applications(scale: Scale) -> Iterator[Document]:
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
            sync_state=ApplicationSyncState(status=_sync_status(number), timestamp=BEGINNING),
            created_at=BEGINNING,
            updated_at=BEGINNING + chance.randrange(YEAR),
        )
        template = deployment("a", "p")
        document.git_path.CopyFrom(template.git_path)
        # Its latest deployment, which has succeeded.
        latest = document.most_recently_successful_deployment
        latest.deployment_id = id_of("deployment", scale.deployments - scale.applications + number)
        latest.trigger.CopyFrom(template.trigger)
        latest.trigger.commit.message = message_of(number, is_old=False)
        latest.summary = f"Sync with the pipeline: {name} to v1.{number}"
        latest.started_at, latest.completed_at = document.updated_at - 60, document.updated_at
        document.most_recently_triggered_deployment.CopyFrom(latest)
        yield document.id, to_json(document, extra=name), labels


def _sync_status(number: int) -> ApplicationSyncStatus.ValueType:
    """One in fifty is out of sync, the others are synced."""
    return ApplicationSyncStatus.OUT_OF_SYNC if number % 50 == 3 else ApplicationSyncStatus.SYNCED


def _deployments(scale: Scale) -> Iterator[Document]:
    # Only the fields that differ are encoded for each.
    template = json.loads(to_json(deployment("a", "p"), extra="a"))
    for number, completed in enumerate(history_of(scale)):
        labels, name = labels_of(completed.application), f"app-{completed.application}"
        is_old = number * 12 < scale.deployments
        if is_old and completed.application % 3 == 1:
            labels |= OLD_LABEL
        commit = template["trigger"]["commit"] | {
            "hash": commit_hash(number),
            "message": message_of(number // 3, is_old=is_old),
        }
        document = template | {
            "trigger": template["trigger"] | {"commit": commit},
            "summary": f"Sync with the pipeline: {name} to v1.{number // 997}.{number % 7}",
            "id": id_of("deployment", number),
            "application_id": id_of("application", completed.application),
            "application_name": name,
            "piped_id": id_of("piped", completed.application % PIPEDS),
            "project_id": scale.project(completed.application),
            "kind": KINDS[completed.application % len(KINDS)],
            "labels": labels,
            "deployment_trace_commit_hash": f"{number // 3:040x}",
            "running_commit_hash": "b" * 40,
            "created_at": completed.at,
            "updated_at": completed.at,
            "status": completed.status,
            "_extra": name,
        }
        if DeploymentStatus(completed.status).is_completed:
            document["completed_at"] = completed.at
        yield document["id"], json.dumps(document, separators=(",", ":")), labels


def commit_hash(number: int) -> str:
    """The hash of the commit of a deployment; three deployments have the same."""
    return sha1(str(number // 3).encode(), usedforsecurity=False).hexdigest()


def message_of(commit: int, *, is_old: bool) -> str:
    verb, one = VERBS[commit % len(VERBS)], NOUNS[commit % 41 % len(NOUNS)]
    other = NOUNS[commit // 7 % len(NOUNS)]
    after = f" before the {OLD_WORD}" if is_old and commit % 50 == 0 else ""
    return f"{verb} the {one} of the {other}{after} (#{commit})"


class PastDeployment(NamedTuple):
    """The application of a deployment by number, its last update, and its status."""

    application: int
    at: int
    status: int


def history_of(scale: Scale) -> Iterator[PastDeployment]:
    """The deployments in the order of time, more or less."""
    chance = random.Random(2)
    for number in range(scale.deployments):
        at = BEGINNING + YEAR * number // scale.deployments + chance.randrange(3600)
        yield PastDeployment(number % scale.applications, at, _status(number, scale))


def _status(number: int, scale: Scale) -> Status.ValueType:
    """Most deployments succeeded, some failed, and a few, including the newest, are running."""
    if number % (scale.deployments // RUNNING) == 0:
        return Status.DEPLOYMENT_RUNNING
    return {0: Status.DEPLOYMENT_FAILURE, 1: Status.DEPLOYMENT_CANCELLED}.get(
        number % 37, Status.DEPLOYMENT_SUCCESS
    )
