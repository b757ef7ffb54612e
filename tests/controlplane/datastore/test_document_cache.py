# SPDX-License-Identifier: Apache-2.0
"""Cached documents are updated by compare-and-swap, and no update is lost."""

import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from sqlalchemy import Insert, Update

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.applications import ApplicationFilter, Applications
from pipecd.controlplane.datastore.database import Database, OutcomeUnknown, Transaction
from pipecd.controlplane.datastore.deployments import DeploymentFilter, Deployments
from pipecd.controlplane.datastore.document_cache import MAX_CACHED_CHARACTERS, DocumentCache
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.expressions import NO_VALUES, AnySelect, Row, Values
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.query import Selection
from pipecd.model.document import to_json
from pipecd.model.errors import Conflict
from pipecd.proto.model.application_pb2 import Application

Make = Callable[..., Application]
T = TypeVar("T")


class LossyDatabase(Database):
    """Records the requests to a database, and may lose the answer to a single statement."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.requests: list[str] = []
        self.loses = False

    async def lookup(self, statement: AnySelect, values: Values = NO_VALUES) -> Sequence[Row]:
        self.requests.append("lookup")
        return await self._database.lookup(statement, values)

    async def query(self, statement: AnySelect, values: Values = NO_VALUES) -> Sequence[Row]:
        self.requests.append("query")
        return await self._database.query(statement, values)

    async def select(self, selection: Selection) -> Sequence[Row]:
        self.requests.append("select")
        return await self._database.select(selection)

    async def execute(self, statement: Insert | Update, values: Values = NO_VALUES) -> int:
        self.requests.append("execute")
        changed = await self._database.execute(statement, values)
        if self.loses:
            raise OutcomeUnknown("the connection broke")
        return changed

    async def read(self, work: Callable[[Transaction], T]) -> T:
        self.requests.append("read")
        return await self._database.read(work)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        self.requests.append("write")
        return await self._database.write(work)

    async def refresh_labels(self, table: str, project: str) -> None:
        await self._database.refresh_labels(table, project)


def count(application: Application) -> None:
    application.description = str(int(application.description or "0") + 1)


@pytest.fixture
def lossy(database: Database) -> LossyDatabase:
    return LossyDatabase(database)


async def test_a_cached_document_is_updated_in_one_statement(
    lossy: LossyDatabase, application: Make
) -> None:
    store, document = Applications(lossy), application()
    await store.add(document)
    await store.update(document.id, count)
    lossy.requests.clear()
    await store.update(document.id, count)
    assert lossy.requests == ["execute"]
    assert (await store.get(document.id)).description == "2"


async def test_a_document_that_another_process_changed_is_read_again_before_the_update(
    lossy: LossyDatabase, application: Make
) -> None:
    store, other_process = Applications(lossy), Applications(lossy)
    document = application()
    await store.add(document)
    for one in (store, other_process, store, other_process):
        await one.update(document.id, count)
    assert (await store.get(document.id)).description == "4"


async def test_the_stored_document_decides_whether_a_change_is_refused(
    lossy: LossyDatabase, application: Make
) -> None:
    def needs_two(application: Application) -> None:
        if application.description != "2":
            raise Conflict("too early")
        count(application)

    store, other_process = Applications(lossy), Applications(lossy)
    document = application()
    await store.add(document)
    await store.update(document.id, count)
    await other_process.update(document.id, count)
    assert (await store.update(document.id, needs_two)).description == "3"


async def test_a_change_whose_confirmation_was_lost_is_applied_once(
    lossy: LossyDatabase, application: Make
) -> None:
    store, document = Applications(lossy), application()
    await store.add(document)
    await store.update(document.id, count)
    lossy.loses = True
    assert (await store.update(document.id, count)).description == "2"
    assert (await store.get(document.id)).description == "2"


async def test_a_label_filter_matches_after_the_labels_of_a_cached_document_change(
    lossy: LossyDatabase, application: Make
) -> None:
    def move(application: Application) -> None:
        application.labels["env"] = "prod"

    store, document = Applications(lossy), application(labels={"env": "dev"})
    await store.add(document)
    await store.update(document.id, count)
    await store.update(document.id, move)
    for value, matches in (("dev", 0), ("prod", 1)):
        page = await store.list(ApplicationFilter("p", labels={"env": value}))
        assert len(page.items) == matches


async def test_a_list_that_was_read_keeps_what_it_had_when_its_documents_change(
    lossy: LossyDatabase, application: Make
) -> None:
    store = Applications(lossy)
    for name in ("web", "cart"):
        await store.add(application(name=name))
    before = (await store.list(ApplicationFilter("p"))).items
    for document in before:
        await store.update(document.id, count)
    assert [document.description for document in before] == ["", ""]
    after = (await store.list(ApplicationFilter("p"))).items
    assert {document.name: document.description for document in after} == {"web": "1", "cart": "1"}


def test_changing_a_returned_document_does_not_change_the_cache(application: Make) -> None:
    cache = DocumentCache(Application)
    text = to_json(application(name="web"))
    cache.parsed(text).name = "changed"
    assert cache.parsed(text).name == "web"


def test_the_cache_stays_within_its_size(application: Make) -> None:
    cache = DocumentCache(Application)
    for number in range(30):
        document = application(description="x" * (MAX_CACHED_CHARACTERS // 10), name=str(number))
        cache.written(bytes([number]), to_json(document), document)
    assert len(cache._by_text) < 10
    assert cache._characters == sum(map(len, cache._by_text)) <= MAX_CACHED_CHARACTERS


def test_the_cache_has_the_newest_version_of_a_document_only(application: Make) -> None:
    cache = DocumentCache(Application)
    document, other = application(name="web"), application(name="cart")
    cache.written(b"other", to_json(other), other)
    for number in range(30):
        document.description = str(number)
        if number % 2:
            cache.written(b"web", to_json(document), document)
        else:
            # Another replica has written it.
            cache.parsed(to_json(document))
    assert [*cache._by_text] == [to_json(other), to_json(document)]
    assert cache._characters == sum(map(len, cache._by_text))


def test_old_documents_leave_nothing_in_memory(application: Make) -> None:
    def write(number: int) -> weakref.ref[str]:
        class Text(str):
            """A text whose end can be observed."""

        document = application(name=str(number), description="x" * (MAX_CACHED_CHARACTERS // 100))
        text = Text(to_json(document))
        cache.written(str(number).encode(), text, document)
        return weakref.ref(text)

    cache = DocumentCache(Application)
    texts = [write(number) for number in range(500)]
    assert sum(text() is not None for text in texts) < 100
    assert cache.latest(b"0") is None
    assert cache.latest(b"499") is texts[-1]()


def test_what_is_derived_from_a_document_is_computed_once_for_each_version(
    application: Make,
) -> None:
    derived: list[str] = []

    def name(document: Application) -> str:
        derived.append(document.name)
        return document.name

    cache, document = DocumentCache(Application), application(name="web")
    first = to_json(document)
    document.name = "shop"
    second = to_json(document)
    assert cache.derived([first], name) == ("web",)
    assert cache.derived([first, first], name) == ("web", "web")
    assert cache.derived([second], name) == ("shop",)
    assert derived == ["web", "shop"]
    assert cache.derived([second], lambda d: d.id) == (document.id,)
    assert cache.parsed(second).name == "shop"


async def test_derived_lists_follow_every_change_of_any_process(
    database: Database, application: Make
) -> None:
    def rename(application: Application) -> None:
        application.name += "!"

    def delete(application: Application) -> None:
        application.deleted = True

    async def names() -> list[str]:
        filter = ApplicationFilter("p", labels={"env": "dev"})
        return sorted(await store.list_derived(filter, lambda a: a.name))

    store, other_process = Applications(database), Applications(database)
    documents = [application(name=name, labels={"env": "dev"}) for name in ("web", "cart", "pay")]
    for document in documents:
        await store.add(document)
    assert await names() == ["cart", "pay", "web"]
    await other_process.update(documents[0].id, rename)
    await store.update(documents[1].id, rename)
    assert await names() == ["cart!", "pay", "web!"]
    await other_process.update(documents[2].id, delete)
    assert await names() == ["cart!", "web!"]
    listed = await store.list(ApplicationFilter("p", labels={"env": "dev"}))
    assert sorted(each.name for each in listed.items) == await names()


class CountingObserver:
    """Records the operations of a datastore."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def begun(self, store: str, operation: str) -> Callable[[BaseException | None], None]:
        self.operations.append(f"{store} {operation}")
        return lambda _: None


async def test_a_page_of_several_filters_is_one_read(spec: DatastoreSpec) -> None:
    observer = CountingObserver()
    filter = DeploymentFilter("p", kinds=(0, 1), statuses=(2, 3))
    async with open_datastore(spec, observers=[observer]) as database:
        await Deployments(database).list(filter, PageRequest(size=9))
    assert observer.operations == ["datastore read"]
