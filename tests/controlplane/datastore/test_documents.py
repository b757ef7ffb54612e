# SPDX-License-Identifier: Apache-2.0
"""Tables of documents: get, add and update, concurrently and after a restart."""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.documents import Documents
from pipecd.controlplane.datastore.query import row_id
from pipecd.controlplane.datastore.schema import APPLICATION, DEPLOYMENT, EXT_LABEL, METADATA
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import AlreadyExists, NotFound, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser

Make = Callable[..., Application]


def store_of(stores: Stores, table: str) -> Documents[Any]:
    return {
        "Project": stores.projects,
        "Application": stores.applications,
        "Deployment": stores.deployments,
        "Command": stores.commands,
        "Piped": stores.pipeds,
        "APIKey": stores.api_keys,
        "Event": stores.events,
        "DeploymentChain": stores.chains,
        "DeploymentTrace": stores.traces,
    }[table]


def rename(name: str) -> Callable[[Application], None]:
    def change(document: Application) -> None:
        document.name = name

    return change


async def test_get_returns_the_stored_document(stores: Stores, application: Make) -> None:
    stored = application(labels={"env": "dev"}, description="<a> & b\u2028")
    await stores.applications.add(stored)
    assert await stores.applications.get(stored.id) == stored


async def test_add_fills_in_times_that_are_zero(
    stores: Stores, application: Make, clock: Any
) -> None:
    plain, dated = application(), application(created_at=5, updated_at=7)
    await stores.applications.add(plain)
    await stores.applications.add(dated)
    stored = await stores.applications.get(plain.id)
    assert (stored.created_at, stored.updated_at) == (int(clock.seconds), int(clock.seconds))
    stored = await stores.applications.get(dated.id)
    assert (stored.created_at, stored.updated_at) == (5, 7)


async def test_an_unknown_id_raises_not_found(stores: Stores) -> None:
    with pytest.raises(NotFound, match=r"^Deployment is not found$"):
        await stores.deployments.get(new_id())
    with pytest.raises(NotFound):
        await stores.applications.update(new_id(), rename("x"))


async def test_an_existing_id_cannot_be_added_again(stores: Stores, application: Make) -> None:
    first = application(name="first")
    await stores.applications.add(first)
    with pytest.raises(AlreadyExists):
        await stores.applications.add(application(id=first.id, name="second"))
    assert (await stores.applications.get(first.id)).name == "first"


async def test_get_many_returns_the_documents_that_exist(stores: Stores, application: Make) -> None:
    ids = [new_id() for _ in range(5)]
    for id in ids:
        await stores.applications.add(application(id=id))
    existing = await stores.applications.get_many((*ids, new_id(), "no-such-id"))
    assert set(existing) == set(ids)
    assert await stores.applications.get_many(()) == {}
    among_many = await stores.applications.get_many((*(str(i) for i in range(10_000)), *ids))
    assert set(among_many) == set(ids)


async def test_an_update_sets_the_time_and_returns_the_stored_document(
    stores: Stores, application: Make, clock: Any
) -> None:
    document = application()
    await stores.applications.add(document)
    clock.seconds += 10
    changed = await stores.applications.update(document.id, rename("api"))
    assert (changed.name, changed.updated_at) == ("api", int(clock.seconds))
    assert await stores.applications.get(document.id) == changed


async def test_an_update_without_touch_keeps_the_time(
    stores: Stores, api_key: Callable[..., Any], clock: Any
) -> None:
    key = api_key()
    await stores.api_keys.add(key)
    clock.seconds += 10

    def used(document: Any) -> None:
        document.last_used_at = int(clock.seconds)

    changed = await stores.api_keys.update(key.id, used, touch=False)
    assert changed.updated_at == key.updated_at
    assert changed.last_used_at == int(clock.seconds)


async def test_updated_at_never_decreases_when_the_clock_goes_back(
    stores: Stores, application: Make, clock: Any
) -> None:
    document = application()
    await stores.applications.add(document)
    clock.seconds -= 100
    changed = await stores.applications.update(document.id, rename("api"))
    assert changed.updated_at == document.updated_at


async def test_a_change_that_raises_is_rolled_back(stores: Stores, application: Make) -> None:
    document = application(labels={"env": "dev"})
    await stores.applications.add(document)

    def fail(changed: Application) -> None:
        changed.labels["env"] = "prd"
        changed.name = "other"
        raise LookupError("no such stage")

    with pytest.raises(LookupError, match="no such stage"):
        await stores.applications.update(document.id, fail)
    assert await stores.applications.get(document.id) == document
    listed = await stores.applications.list(ApplicationFilter("p", labels={"env": "dev"}))
    assert listed.items == (document,)


async def test_an_update_cannot_change_the_id(stores: Stores, application: Make) -> None:
    document = application()
    await stores.applications.add(document)

    def change(changed: Application) -> None:
        changed.id = new_id()

    with pytest.raises(ValueError, match="must not change the id"):
        await stores.applications.update(document.id, change)


async def test_an_invalid_document_is_not_stored(stores: Stores, application: Make) -> None:
    with pytest.raises(UserMistake, match=r"Application.Name"):
        await stores.applications.add(application(name=""))
    document = application()
    await stores.applications.add(document)
    with pytest.raises(UserMistake, match=r"Application.Name"):
        await stores.applications.update(document.id, rename(""))
    assert (await stores.applications.get(document.id)).name == "web"


async def test_a_document_that_was_invalid_before_can_still_be_changed(
    stores: Stores, database: Database, application: Make
) -> None:
    document = application()
    await stores.applications.add(document)
    await overwrite(database, document.id, {"kind": 2})

    def disable(changed: Application) -> None:
        changed.disabled = True

    assert (await stores.applications.update(document.id, disable)).disabled


async def overwrite(database: Database, id: str, fields: dict[str, Any]) -> None:
    """Rewrites a row without validation, as another program may."""

    def work(transaction: Transaction) -> None:
        rows = transaction.query(select(APPLICATION.c.Data).where(APPLICATION.c.Id == row_id(id)))
        text = json.dumps(json.loads(rows[0][0]) | fields)
        transaction.execute(
            APPLICATION.update().where(APPLICATION.c.Id == row_id(id)).values(Data=text)
        )

    await database.write(work)


async def test_a_document_without_a_project_is_refused(
    stores: Stores, command: Callable[..., Any]
) -> None:
    with pytest.raises(UserMistake, match="ProjectId is missing"):
        await stores.commands.add(command(project_id=""))


@pytest.mark.usefixtures("row_locks")
async def test_no_update_of_fifty_concurrent_writers_is_lost(
    stores: Stores, application: Make
) -> None:
    document = application(description="0")
    await stores.applications.add(document)

    def count(changed: Application) -> None:
        changed.description = str(int(changed.description) + 1)

    async def writer() -> None:
        for _ in range(10):
            await stores.applications.update(document.id, count)

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(writer())
    assert (await stores.applications.get(document.id)).description == "500"


async def test_a_write_that_fails_does_not_affect_concurrent_writes(
    stores: Stores, application: Make
) -> None:
    documents = [application(description=str(i)) for i in range(40)]
    await stores.applications.add(documents[0])
    twice = [*documents, *documents[:10]]
    results = await asyncio.gather(
        *(stores.applications.add(d) for d in twice[1:]), return_exceptions=True
    )
    # Of two concurrent writes, either may be the first.
    assert Counter(type(r) for r in results) == {type(None): 39, AlreadyExists: 10}
    existing = await stores.applications.get_many(tuple(d.id for d in documents))
    assert len(existing) == 40


async def test_cancelling_a_write_does_not_affect_other_writes(
    stores: Stores, application: Make
) -> None:
    documents = [application() for _ in range(20)]
    tasks = [asyncio.create_task(stores.applications.add(d)) for d in documents]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.wait(tasks)
    existing = await stores.applications.get_many(tuple(d.id for d in documents))
    assert {d.id for d in documents[1::2]} <= set(existing)


async def test_a_slow_write_does_not_block_the_event_loop(
    stores: Stores, application: Make
) -> None:
    document = application()
    await stores.applications.add(document)
    loop_ran = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_loop(_: Application) -> None:
        asyncio.run_coroutine_threadsafe(_set(loop_ran), loop).result(timeout=10)

    await stores.applications.update(document.id, wait_for_the_loop)
    assert loop_ran.is_set()


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_documents_and_labels_survive_a_restart(
    open_stores: Callable[[], AbstractAsyncContextManager[Stores]], application: Make
) -> None:
    document = application(labels={"env": "dev"})
    async with open_stores() as stores:
        await stores.applications.add(document)
    async with open_stores() as stores:
        assert await stores.applications.get(document.id) == document
        listed = await stores.applications.list(ApplicationFilter("p", labels={"env": "dev"}))
        assert listed.items == (document,)


async def test_rows_equal_those_of_upstream(
    stores: Stores, database: Database, spec_dir: Path, engine: str
) -> None:
    vectors = json.loads((spec_dir / "vectors" / "mysql_documents.json").read_text())
    for vector in vectors["documents"]:
        store = store_of(stores, vector["table"])
        message = store._kind.message()  # type: ignore[attr-defined]
        message.ParseFromString(base64.b64decode(vector["proto_base64"]))
        await store.add(message)
        assert await store.get(vector["id"]) == message
        await assert_row(database, vector, engine)


async def assert_row(database: Database, vector: dict[str, Any], engine: str) -> None:
    table = METADATA.tables[vector["table"]]
    columns = [table.c.Id, table.c.Data, table.c.Extra, table.c.CreatedAt, table.c.UpdatedAt]
    rows = await database.read(lambda transaction: transaction.query(select(*columns)))
    plain = vector["row_uuid"].replace("-", "")
    swapped = plain[12:16] + plain[8:12] + plain[0:8] + plain[16:]
    document = json.loads(vector["data_json"])
    # MySQL keeps JSON in an order of its own, the others keep the text.
    assert json.loads(rows[0][1]) == document
    assert engine == "dolt" or rows[0][1] == vector["data_json"]
    assert rows == [
        (
            bytes.fromhex(swapped),
            rows[0][1],
            document["_extra"],
            document["created_at"],
            document["updated_at"],
        )
    ]


async def test_computed_columns_are_updated_with_the_document(
    stores: Stores,
    database: Database,
    application: Make,
    deployment: Callable[..., Deployment],
) -> None:
    state = ApplicationSyncState(status=3, timestamp=1)  # type: ignore[arg-type]
    await stores.applications.add(application(disabled=True, kind=5, sync_state=state))
    await stores.deployments.add(deployment(status=2, deployment_chain_id="chain"))
    a, d = APPLICATION.c, DEPLOYMENT.c
    statement = select(a.ProjectId, a.Disabled, a.Name, a.Kind, a.SyncState_Status, a.PipedId)
    assert await database.read(lambda t: list(t.query(statement))) == [
        ("p", 1, "web", 5, 3, "piped-1")
    ]
    statement = select(
        d.Status, d.CompletedAt, d.DeploymentChainId, d.DeploymentTraceCommitHash, d.Kind
    )
    assert await database.read(lambda t: list(t.query(statement))) == [(2, None, "chain", "", 0)]


async def test_the_label_index_is_updated_with_the_document(
    stores: Stores, database: Database, application: Make
) -> None:
    document = application(labels={"env": "dev", "team": "a"})
    await stores.applications.add(document)

    def relabel(changed: Application) -> None:
        del changed.labels["team"]
        changed.labels["env"] = "prd"

    await stores.applications.update(document.id, relabel)
    columns = select(EXT_LABEL.c.Kind, EXT_LABEL.c.LabelKey, EXT_LABEL.c.LabelValue)
    assert await database.read(lambda t: list(t.query(columns))) == [("Application", "env", "prd")]


async def test_get_returns_a_project_by_its_name(stores: Stores) -> None:
    admin = ProjectStaticUser(username="admin", password_hash="secret-hash")
    for id in ("zebra", "quickstart", "alpha"):
        await stores.projects.add(Project(id=id, static_admin=admin))
    assert (await stores.projects.get("quickstart")).id == "quickstart"
    assert [p.id for p in await stores.projects.list()] == ["alpha", "quickstart", "zebra"]
