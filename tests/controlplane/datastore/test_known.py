# SPDX-License-Identifier: Apache-2.0
"""Documents that this process knows already are changed in one step, and no change is lost."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from pipecd.controlplane.datastore.applications import ApplicationFilter, Applications
from pipecd.controlplane.datastore.database import (
    NOTHING,
    Database,
    Doubtful,
    Reading,
    Row,
    Values,
    Writing,
)
from pipecd.controlplane.datastore.deployments import DeploymentFilter, Deployments
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.engine.known import MOST_CHARACTERS, Known
from pipecd.model.document import to_json
from pipecd.model.errors import Conflict
from pipecd.proto.model.application_pb2 import Application

Make = Callable[..., Application]
T = TypeVar("T")


class LossyDatabase:
    """Counts what is asked of a database, and may lose the answer to a statement that stands alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.seen: list[str] = []
        self.loses = False

    async def glance(self, statement: Any, values: Values = NOTHING) -> Sequence[Row]:
        self.seen.append("glance")
        return await self._database.glance(statement, values)

    async def change(self, statement: Any, values: Values = NOTHING) -> int:
        self.seen.append("change")
        done = await self._database.change(statement, values)
        if self.loses:
            raise Doubtful("the connection broke")
        return done

    async def read(self, work: Callable[[Reading], T]) -> T:
        self.seen.append("read")
        return await self._database.read(work)

    async def write(self, work: Callable[[Writing], T]) -> T:
        self.seen.append("write")
        return await self._database.write(work)

    async def catch_up(self, table: str, project: str) -> None:
        await self._database.catch_up(table, project)

    @property
    def weighs(self) -> bool:
        return self._database.weighs


def count(application: Application) -> None:
    application.description = str(int(application.description or "0") + 1)


@pytest.fixture
def lossy(database: Database) -> LossyDatabase:
    return LossyDatabase(database)


async def test_a_document_that_was_changed_here_is_changed_in_one_statement(
    lossy: LossyDatabase, application: Make
) -> None:
    store, document = Applications(lossy), application()
    await store.add(document)
    await store.update(document.id, count)
    lossy.seen.clear()
    await store.update(document.id, count)
    assert lossy.seen == ["change"]
    assert (await store.get(document.id)).description == "2"


async def test_a_document_that_another_process_changed_is_read_again(
    lossy: LossyDatabase, application: Make
) -> None:
    store, elsewhere = Applications(lossy), Applications(lossy)
    document = application()
    await store.add(document)
    for one in (store, elsewhere, store, elsewhere):
        await one.update(document.id, count)
    assert (await store.get(document.id)).description == "4"


async def test_what_is_stored_decides_whether_a_change_is_refused(
    lossy: LossyDatabase, application: Make
) -> None:
    def needs_two(application: Application) -> None:
        if application.description != "2":
            raise Conflict("too early")
        count(application)

    store, elsewhere = Applications(lossy), Applications(lossy)
    document = application()
    await store.add(document)
    await store.update(document.id, count)
    await elsewhere.update(document.id, count)
    assert (await store.update(document.id, needs_two)).description == "3"


async def test_a_change_whose_answer_was_lost_is_made_once(
    lossy: LossyDatabase, application: Make
) -> None:
    store, document = Applications(lossy), application()
    await store.add(document)
    await store.update(document.id, count)
    lossy.loses = True
    assert (await store.update(document.id, count)).description == "2"
    assert (await store.get(document.id)).description == "2"


async def test_labels_are_found_after_a_document_known_here_got_others(
    lossy: LossyDatabase, application: Make
) -> None:
    def move(application: Application) -> None:
        application.labels["env"] = "prod"

    store, document = Applications(lossy), application(labels={"env": "dev"})
    await store.add(document)
    await store.update(document.id, count)
    await store.update(document.id, move)
    for value, found in (("dev", 0), ("prod", 1)):
        page = await store.list(ApplicationFilter("p", labels={"env": value}))
        assert len(page.items) == found


def test_whoever_gets_a_known_document_may_change_it(application: Make) -> None:
    known = Known(Application)
    text = to_json(application(name="web"))
    known.parsed(text).name = "changed"
    assert known.parsed(text).name == "web"


def test_what_is_known_does_not_grow_without_end(application: Make) -> None:
    known = Known(Application)
    for number in range(30):
        document = application(description="x" * (MOST_CHARACTERS // 10), name=str(number))
        known.written(bytes([number]), to_json(document), document)
    assert len(known._by_text) < 10
    assert known._characters == sum(map(len, known._by_text)) <= MOST_CHARACTERS


async def test_a_page_is_one_question_where_counting_first_does_not_pay(database: Database) -> None:
    asked = LossyDatabase(database)
    wanted = DeploymentFilter("p", kinds=(0, 1), statuses=(2, 3))
    await Deployments(asked).list(wanted, PageRequest(size=9))
    assert asked.seen == (["glance", "read"] if database.weighs else ["read"])
