# SPDX-License-Identifier: Apache-2.0
"""The packed history of deployments, in which texts and labels are searched."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from pipecd.controlplane.datastore import deployments, history, segments
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.query import Condition, any_of, labelled, mentions
from pipecd.controlplane.datastore.schema import EXT_DEPLOYMENT_SEGMENT
from pipecd.controlplane.datastore.segments import Entry, SegmentQuery, entry_of, pack, wording
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.document import to_json
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

MakeDeployment = Callable[..., Deployment]

FIRST = EXT_DEPLOYMENT_SEGMENT.c.FirstUpdatedAt
LAST = EXT_DEPLOYMENT_SEGMENT.c.LastUpdatedAt


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments have four deployments, and only one is looked at before them."""
    monkeypatch.setattr(segments, "MAX_ENTRIES", 4)
    monkeypatch.setattr(history, "MAX_ENTRIES", 4)
    monkeypatch.setattr(deployments, "NEWEST_ENTRIES", 1)


@pytest.fixture
async def add(
    stores: Stores, application: Callable[..., Application], deployment: MakeDeployment
) -> Callable[..., Any]:
    await stores.applications.add(application())

    async def add(name: str, updated_at: int, **fields: Any) -> Deployment:
        document = deployment(application_name=name, created_at=1, updated_at=updated_at, **fields)
        await stores.deployments.add(document)
        return document

    return add


async def times(database: Database) -> list[tuple[int, int]]:
    return sorted((first, last) for first, last in await database.query(select(FIRST, LAST)))


async def names(stores: Stores, text: str, size: int = 9, **filters: Any) -> list[str]:
    page = await stores.deployments.list(
        DeploymentFilter("p", text=text, **filters), PageRequest(size)
    )
    return [each.application_name for each in page.items]


@pytest.mark.usefixtures("short_segments")
async def test_deployments_are_packed_in_the_order_of_their_updates(
    stores: Stores, database: Database, add: Callable[..., Any]
) -> None:
    for at in range(1, 12):
        await add(f"app-{at}", at)
    assert await stores.deployments.pack_history() == 9
    # The last second of what was read may have more deployments.
    assert await times(database) == [(1, 3), (4, 6), (7, 9)]
    assert await stores.deployments.pack_history() == 0
    assert await names(stores, "APP-1") == ["app-11", "app-10", "app-1"]
    assert await names(stores, "pp-7") == ["app-7"]
    assert await names(stores, "app-77") == []


@pytest.mark.usefixtures("short_segments")
async def test_many_deployments_of_one_second_are_in_several_segments(
    stores: Stores, database: Database, add: Callable[..., Any]
) -> None:
    documents = [await add(f"app-{number}", 5) for number in range(9)]
    for number in range(5):
        await add(f"later-{number}", 6 + number)
    await stores.deployments.pack_history()
    assert (await times(database))[:3] == [(5, 5), (5, 5), (5, 5)]
    listed: list[str] = []
    page = PageRequest(2)
    while True:
        part = await stores.deployments.list(DeploymentFilter("p", text="app-"), page)
        listed += [each.id for each in part.items]
        if not part.cursor:
            break
        page = PageRequest(2, part.cursor)
    assert len(listed) == 9
    assert set(listed) == {each.id for each in documents}


@pytest.mark.usefixtures("short_segments")
async def test_a_deployment_that_changes_is_found_by_what_it_is_now(
    stores: Stores, clock: Any, add: Callable[..., Any]
) -> None:
    changed = await add("changed", 1, summary="before", labels={"env": "dev"})
    for at in range(2, 9):
        await add(f"app-{at}", at)
    await stores.deployments.pack_history()
    assert await names(stores, "before") == ["changed"]
    await stores.deployments.update(changed.id, lambda d: setattr(d, "summary", "after"))
    for _ in range(2):
        assert await names(stores, "before") == []
        assert await names(stores, "after") == ["changed"]
        clock.seconds += 1000
        for at in range(4):
            await add(f"new-{at}", int(clock.seconds) - 900 + at)
        await stores.deployments.pack_history()


@pytest.mark.usefixtures("short_segments")
async def test_deployments_that_changed_lately_are_not_packed(
    stores: Stores, database: Database, clock: Any, add: Callable[..., Any]
) -> None:
    for number in range(9):
        await add(f"app-{number}", int(clock.seconds) - 300)
    assert await stores.deployments.pack_history() == 0
    assert await times(database) == []
    clock.seconds += 301
    assert await stores.deployments.pack_history() == 9


@pytest.mark.usefixtures("short_segments")
async def test_a_history_that_was_lost_is_packed_again(
    open_stores: Callable[[], AbstractAsyncContextManager[Stores]],
    stores: Stores,
    database: Database,
    add: Callable[..., Any],
) -> None:
    for at in range(1, 12):
        await add(f"app-{at}", at)
    await stores.deployments.pack_history()
    await database.write(lambda t: t.execute(delete(EXT_DEPLOYMENT_SEGMENT)))
    assert await stores.deployments.pack_history() == 9
    assert await names(stores, "app-3") == ["app-3"]


async def test_the_table_of_an_earlier_layout_is_dropped(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
) -> None:
    for _ in range(2):
        async with open_database() as database:
            name = "`ExtHistorySegment`" if database.engine == "mysql" else '"ExtHistorySegment"'
            # The second time, this fails if the first table is still there.
            await database.write(lambda t, n=name: t.run_sql(f"CREATE TABLE {n} (a INTEGER)"))
    async with open_database():
        pass


def entries(*documents: Deployment) -> list[Entry]:
    return [
        entry_of(bytes([number] * 16), each.updated_at, to_json(each))
        for number, each in enumerate(documents)
    ]


def found(query: SegmentQuery, *documents: Deployment) -> list[int]:
    """The numbers of the documents that are found; the bits must not exclude them."""
    [segment] = pack(entries(*documents))
    lines = segment.texts if query.has_number else segment.wordings

    def numbers_of(lines: bytes, keys: bytes) -> list[int]:
        matches = query.find(segment.entries, lines, keys)
        return sorted(match.found(segment.ids).id[0] for match in matches)

    numbers = numbers_of(lines, segment.keys)
    assert query.may_have(segment.grams) or not numbers
    if not query.may_have_key(segment.grams):
        assert numbers_of(lines, b"") == numbers
    if not query.may_have_text(segment.grams):
        assert numbers_of(b"", segment.keys) == numbers
    return numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("web", [0], id="a name"),
        pytest.param("e", [0, 1, 2], id="a letter"),
        pytest.param("FIX THE", [1], id="a message in upper case"),
        pytest.param("login\nand", [1], id="a line break"),
        pytest.param("login\nthen", [], id="another line after the break"),
        pytest.param("größe", [2], id="a letter that is not in ASCII"),
        pytest.param("GRÖSSE", [], id="another letter"),
        pytest.param("c0ff", [0], id="the beginning of a hash"),
        pytest.param("0ff", [], id="the middle of a hash"),
        pytest.param(
            "c0ffee" * 7, [0], id="more than a hash has, for which the document is checked"
        ),
        pytest.param("webapi", [], id="the end of a text and the beginning of another"),
        pytest.param("to v1.", [2], id="a text with a number"),
        pytest.param("v1.20", [], id="another number of the same wording"),
        pytest.param(". of", [2], id="what is between two numbers"),
        pytest.param("v0", [], id="the zero of a wording"),
    ],
)
def test_a_text_is_found_in_a_segment(
    deployment: MakeDeployment, text: str, expected: list[int]
) -> None:
    documents = [deployment(application_name=name, id="x") for name in ("web", "api", "job")]
    for document in documents:
        document.trigger.commit.hash = "dead" * 10
    documents[0].trigger.commit.hash = "c0ffee" * 6 + "c0ff"
    documents[1].trigger.commit.message = "Fix the login\nand more"
    documents[2].summary = "Die Größe to v1.21. of 7"
    query = SegmentQuery.of(mentions(text), newest=9)
    assert found(query, *documents) == expected


@pytest.mark.parametrize(
    ("text", "is_worth"),
    [
        pytest.param("c", True, id="a letter that begins a hash"),
        pytest.param("c0", True, id="two letters that begin a hash"),
        pytest.param("0f", False, id="two letters from the middle of a hash"),
        pytest.param("zq", False, id="two letters of none"),
        pytest.param("z", False, id="a letter of none"),
    ],
)
def test_one_or_two_letters_exclude_the_segments_without_them(
    deployment: MakeDeployment, text: str, is_worth: bool
) -> None:
    document = deployment(application_name="web", id="x")
    document.trigger.commit.hash = "c0ffee" * 6 + "c0ff"
    [segment] = pack(entries(document))
    query = SegmentQuery.of(mentions(text), newest=9)
    assert query.may_have(segment.grams) is is_worth


@pytest.mark.parametrize(
    ("conditions", "is_worth"),
    [
        pytest.param(any_of("Status", 3), True, id="a status that one has"),
        pytest.param(any_of("Status", 4), False, id="a status of none"),
        pytest.param(any_of("Status", 4, 3), True, id="two statuses, of which one has one"),
        pytest.param(any_of("Status", *range(4, 40)), True, id="too many values to exclude"),
        pytest.param((*any_of("Kind", 1), *any_of("Status", 4)), False, id="a kind, no status"),
        pytest.param(any_of("Kind", 3), False, id="the value of another column"),
        pytest.param(any_of("ApplicationId", "a"), True, id="an application"),
        pytest.param(any_of("ApplicationId", "b"), False, id="another application"),
    ],
)
def test_values_of_columns_exclude_the_segments_without_them(
    deployment: MakeDeployment, conditions: tuple[Condition, ...], is_worth: bool
) -> None:
    [segment] = pack(entries(deployment(application_id="a", kind=1, status=3)))
    query = SegmentQuery.of((*mentions("w"), *conditions), newest=9)
    assert query.may_have(segment.grams) is is_worth


TEXT = st.text("abAé 012\n", min_size=1, max_size=9)
KEY = st.text("ab0", min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(
    documents=st.lists(
        st.fixed_dictionaries(
            {
                "id": KEY,
                "hash": KEY,
                "application_name": TEXT,
                "message": TEXT,
                "summary": TEXT,
                "status": st.integers(0, 2),
                "labels": st.dictionaries(st.sampled_from("ab"), st.sampled_from("ab")),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    text=st.one_of(st.none(), TEXT, KEY),
    labels=st.dictionaries(st.sampled_from("ab"), st.sampled_from("ab"), max_size=1),
    statuses=st.sets(st.integers(0, 2)),
)
def test_a_segment_names_the_documents_that_a_plain_search_does(
    documents: list[dict[str, Any]],
    text: str | None,
    labels: dict[str, str],
    statuses: set[int],
) -> None:
    stored: list[Deployment] = []
    for fields in documents:
        rest = dict(fields)
        message, hash = rest.pop("message"), rest.pop("hash")
        stored.append(Deployment(updated_at=5, **rest))
        stored[-1].trigger.commit.message, stored[-1].trigger.commit.hash = message, hash
    conditions = (*mentions(text or ""), *labelled(labels), *any_of("Status", *statuses))
    expected = [
        number
        for number, fields in enumerate(documents)
        if labels.items() <= fields["labels"].items()
        and (not statuses or fields["status"] in statuses)
        and (text is None or has_text(fields, text.lower()))
    ]
    assert found(SegmentQuery.of(conditions, newest=9), *stored) == expected


def has_text(fields: dict[str, Any], text: str) -> bool:
    # A line break is a space in a segment; the document is checked for it.
    text = text.replace("\n", " ")
    return any(
        text in fields[name].lower().replace("\n", " ")
        for name in ("application_name", "message", "summary")
    ) or any(fields[name].startswith(text) for name in ("id", "hash"))


@given(texts=st.lists(st.text("a01\u0663 ", max_size=9)), part=st.text("a01\u0663 ", min_size=1))
def test_what_has_no_digit_is_in_a_text_if_it_is_in_its_wording(
    texts: list[str], part: str
) -> None:
    searched = part.encode().translate(None, delete=b"0123456789")
    for text in map(str.encode, texts):
        assert (searched in wording(text)) == (searched in text)


def test_texts_that_differ_in_numbers_have_one_wording(deployment: MakeDeployment) -> None:
    documents = [
        deployment(application_name=f"app-{n}", summary=f"Sync app-{n} to v1.{7 * n}")
        for n in range(50)
    ]
    for document in documents:
        document.trigger.commit.message = "Fix the login"
    [segment] = pack(entries(*documents))
    lines = sorted(segment.wordings.strip().split(b"\n"))
    assert lines == [b"app-0", b"fix the login", b"sync app-0 to v0.0"]


def test_labels_are_found_as_a_whole_and_together(deployment: MakeDeployment) -> None:
    documents = [
        deployment(labels={"env": "dev", "team": "a"}),
        deployment(labels={"env": "development"}),
        deployment(labels={"env": "dev"}),
    ]
    for labels, expected in (
        ({"env": "dev"}, [0, 2]),
        ({"env": "de"}, []),
        ({"env": "dev", "team": "a"}, [0]),
    ):
        assert found(SegmentQuery.of(labelled(labels), newest=9), *documents) == expected


def test_long_messages_are_in_several_segments(
    deployment: MakeDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_TEXT_BYTES", 1000)
    documents = [deployment(summary=str(number) * 400) for number in range(5)]
    assert len(list(pack(entries(*documents)))) == 3
