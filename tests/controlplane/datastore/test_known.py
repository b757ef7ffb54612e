# SPDX-License-Identifier: Apache-2.0
"""Documents that this process knows already are changed in one step, and no change is lost."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from pipecd.controlplane.datastore.database import Database, Reading, Writing
from pipecd.controlplane.datastore.engine.known import MOST_CHARACTERS, Known
from pipecd.controlplane.datastore.tables.applications import SqlApplications
from pipecd.controlplane.stores.applications import ApplicationFilter
from pipecd.model.document import to_json
from pipecd.model.errors import Conflict
from pipecd.proto.model.application_pb2 import Application

Make = Callable[..., Application]
T = TypeVar("T")


class AnswerLost(Exception):
    """The connection broke after a statement was done."""


class Lossy:
    """A transaction that counts its statements, and may lose the answer of one that stands alone."""

    def __init__(self, writing: Writing, seen: list[str], *, loses: bool) -> None:
        self._writing, self._seen, self._loses = writing, seen, loses

    def run_alone(self, *given: Any) -> int:
        self._seen.append("alone")
        done = self._writing.run_alone(*given)
        if self._loses:
            raise AnswerLost
        return done

    def __getattr__(self, name: str) -> Any:
        self._seen.append(name)
        return getattr(self._writing, name)


class LossyDatabase:
    """Does a work whose answer was lost once more, as databases on servers do."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.seen: list[str] = []
        self.loses = False

    async def read(self, work: Callable[[Reading], T]) -> T:
        return await self._database.read(work)

    async def write(self, work: Callable[[Writing], T]) -> T:
        def do(writing: Writing) -> T:
            lossy: Any = Lossy(writing, self.seen, loses=self.loses)
            try:
                return work(lossy)
            except AnswerLost:
                return work(writing)

        return await self._database.write(do)

    async def catch_up(self, table: str, project: str) -> None:
        await self._database.catch_up(table, project)


def count(application: Application) -> None:
    application.description = str(int(application.description or "0") + 1)


@pytest.fixture
def lossy(database: Database) -> LossyDatabase:
    return LossyDatabase(database)


async def test_a_document_that_was_changed_here_is_changed_in_one_statement(
    lossy: LossyDatabase, application: Make
) -> None:
    store, document = SqlApplications(lossy), application()
    await store.add(document)
    await store.update(document.id, count)
    lossy.seen.clear()
    await store.update(document.id, count)
    assert lossy.seen == ["alone"]
    assert (await store.get(document.id)).description == "2"


async def test_a_document_that_another_process_changed_is_read_again(
    lossy: LossyDatabase, application: Make
) -> None:
    store, elsewhere = SqlApplications(lossy), SqlApplications(lossy)
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

    store, elsewhere = SqlApplications(lossy), SqlApplications(lossy)
    document = application()
    await store.add(document)
    await store.update(document.id, count)
    await elsewhere.update(document.id, count)
    assert (await store.update(document.id, needs_two)).description == "3"


async def test_a_change_whose_answer_was_lost_is_made_once(
    lossy: LossyDatabase, application: Make
) -> None:
    store, document = SqlApplications(lossy), application()
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

    store, document = SqlApplications(lossy), application(labels={"env": "dev"})
    await store.add(document)
    await store.update(document.id, count)
    await store.update(document.id, move)
    for value, found in (("dev", 0), ("prod", 1)):
        page = await store.listed(ApplicationFilter("p", labels={"env": value}))
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
