# SPDX-License-Identifier: Apache-2.0
"""Pages that are merged from ranges of an index contain what a plain filter of all documents does."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from pipecd.controlplane.datastore import deployments, history, ranges, segments
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    OLDEST,
    Condition,
    Selection,
    any_of,
    equal,
    labelled,
    row_id,
)
from pipecd.controlplane.datastore.ranges import choose_index, entry_statement
from pipecd.controlplane.datastore.schema import DEPLOYMENT
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.document import to_json
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

MakeDeployment = Callable[..., Deployment]
CheckPages = Callable[..., Awaitable[None]]

KINDS, STATUSES = (0, 1, 3, 4, 5), tuple(range(7))
LABELS = ({}, {"env": "dev"}, {"env": "prd"}, {"env": "dev", "team": "a"}, {"team": "a"})
TEXTS = (
    *(
        "",
        "w",
        "We",
        "f",
        "C0",
        "zq",
        "api",
        "none",
        "the_l",
        "theol",
        "ix the login",
        "ix the_login",
        "0%\nand",
    ),
    *(
        "sync of w",
        "quick sync of web app",
        "C0ff",
        "ffee",
        "feedc0defeedc0de",
        "本語の",
        "größe 1",
        "done",
    ),
)
DOCUMENT = st.fixed_dictionaries(
    {
        "application_id": st.sampled_from(("app-1", "app-2", "app-3")),
        "application_name": st.sampled_from(("web", "WEB", "api")),
        "piped_id": st.sampled_from(("piped-1", "piped-2")),
        "kind": st.sampled_from(KINDS),
        "status": st.sampled_from(STATUSES),
        "labels": st.sampled_from(LABELS),
        "updated_at": st.integers(1, 4),
        "summary": st.sampled_from(("", "Quick sync of WEB", "Größe 100%\nand more")),
        "message": st.sampled_from(("change", "Fix the_login", "日本語の説明")),
        "hash": st.sampled_from(("c0ffee" * 6, "feedc0de" * 5)),
        "is_elsewhere": st.booleans(),
        "changes": st.sampled_from((None, None, {"summary": "done"}, {"labels": {"env": "dev"}})),
    }
)
DOCUMENTS = st.lists(DOCUMENT, max_size=14)
# Most of them belong to the project, so that its history is packed.
HISTORIES = st.lists(DOCUMENT.map(lambda d: d | {"is_elsewhere": False}), min_size=6, max_size=16)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "kinds": st.lists(st.sampled_from(KINDS), unique=True).map(tuple),
        "statuses": st.lists(st.sampled_from(STATUSES), unique=True).map(tuple),
        "application_ids": st.sampled_from(
            (
                ("app-1",),
                ("app-2", "none"),
                tuple(f"app-{i}" for i in range(11)),
                tuple(f"app-{i}" for i in range(70)),
            )
        ),
        "application_name": st.sampled_from(("web", "api", "none")),
        "piped_id": st.sampled_from(("piped-1", "none")),
        "labels": st.sampled_from(LABELS),
        "text": st.sampled_from(TEXTS),
    },
)


SEARCHES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(TEXTS),
        "labels": st.sampled_from(LABELS),
        "statuses": st.lists(st.sampled_from(STATUSES), min_size=4, unique=True).map(tuple),
        "kinds": st.lists(st.sampled_from(KINDS), min_size=3, unique=True).map(tuple),
        "piped_id": st.just("piped-1"),
    },
)


@pytest.fixture(params=[64, 5, 1])
def max_ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many ranges a page has at most; with fewer, long lists are sorted or not split."""
    for cached in (ranges.page_statement, ranges.entry_statement):
        cached.cache_clear()
    monkeypatch.setattr(ranges, "MAX_RANGES", request.param)
    monkeypatch.setattr(deployments, "MAX_RANGES", request.param)
    monkeypatch.setattr(deployments, "NEWEST_ENTRIES", request.param)
    monkeypatch.setattr(segments, "MAX_ENTRIES", min(request.param, 3))
    monkeypatch.setattr(history, "MAX_ENTRIES", min(request.param, 3))
    # Entries are read beside texts after a segment that had the text, else after the texts.
    monkeypatch.setattr(history, "SEGMENTS_AT_ONCE", (1, 2, 3))
    monkeypatch.setattr(history, "DOCUMENTS_AT_ONCE", (2,))
    yield request.param
    for cached in (ranges.page_statement, ranges.entry_statement):
        cached.cache_clear()


@pytest.mark.usefixtures("max_ranges")
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    documents=DOCUMENTS,
    filters=FILTERS,
    size=st.integers(0, 5),
    oldest=st.sampled_from((0, 2)),
    packed=st.integers(0, 2),
)
async def test_pages_of_any_filter_contain_what_a_plain_filter_does(
    check_pages: CheckPages, **values: Any
) -> None:
    await check_pages(**values)


@pytest.mark.parametrize("max_ranges", [1], indirect=True)
@pytest.mark.usefixtures("max_ranges")
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    documents=HISTORIES,
    filters=SEARCHES,
    size=st.integers(0, 5),
    oldest=st.sampled_from((0, 0, 2)),
    packed=st.integers(1, 2),
)
async def test_pages_from_a_packed_history_contain_what_a_plain_filter_does(
    check_pages: CheckPages, **values: Any
) -> None:
    await check_pages(**values)


@pytest.fixture
def check_pages(
    stores: Stores,
    application: Callable[..., Application],
    deployment: MakeDeployment,
    clock: Any,
) -> CheckPages:
    return partial(compare_pages, stores, application, deployment, clock)


async def compare_pages(
    stores: Stores,
    application: Callable[..., Application],
    deployment: MakeDeployment,
    clock: Any,
    *,
    documents: list[dict[str, Any]],
    filters: dict[str, Any],
    size: int,
    oldest: int,
    packed: int,
) -> None:
    """Stores the documents, packs and changes them, and compares all pages of a list."""
    filter = DeploymentFilter(new_id(), **filters)
    elsewhere = new_id()
    stored: list[Deployment] = []
    for project in (filter.project, elsewhere):
        await stores.applications.add(application(id=new_id(), project_id=project))
    for document in documents:
        fields = dict(document)
        project = elsewhere if fields.pop("is_elsewhere") else filter.project
        message, hash, _ = fields.pop("message"), fields.pop("hash"), fields.pop("changes")
        added = deployment(project_id=project, **fields)
        added.trigger.commit.message, added.trigger.commit.hash = message, hash
        stored.append(added)
        await stores.deployments.add(added)
    if packed:
        await stores.deployments.pack_history()
    for number, document in enumerate(documents):
        if changes := document["changes"]:
            stored[number] = await stores.deployments.update(
                stored[number].id, lambda d, c=changes: d.MergeFrom(Deployment(**c))
            )
    if packed > 1:
        clock.seconds += 1000
        await stores.deployments.pack_history()
    expected = [d for d in stored if d.updated_at >= oldest and matches(d, filter)]
    expected.sort(key=lambda d: (-d.updated_at, row_id(d.id)))
    listed: list[str] = []
    page = PageRequest(size, min_updated_at=oldest)
    # Stops if the pages do not advance.
    while len(listed) <= len(stored):
        part = await stores.deployments.list(filter, page)
        listed += [d.id for d in part.items]
        if not part.cursor:
            break
        page = PageRequest(size, part.cursor, min_updated_at=oldest)
    assert listed == [d.id for d in expected]


def matches(document: Deployment, filter: DeploymentFilter) -> bool:
    return (
        document.project_id == filter.project
        and (not filter.kinds or document.kind in filter.kinds)
        and (not filter.statuses or document.status in filter.statuses)
        and (not filter.application_ids or document.application_id in filter.application_ids)
        and filter.application_name in ("", document.application_name)
        and filter.piped_id in ("", document.piped_id)
        and filter.labels.items() <= document.labels.items()
        and mentions(document, filter.text.lower())
    )


def mentions(document: Deployment, text: str) -> bool:
    commit = document.trigger.commit
    return any(
        text in each.lower()
        for each in (document.application_name, commit.message, document.summary)
    ) or any(key.startswith(text) for key in (document.id, commit.hash))


@pytest.mark.parametrize(
    "filters",
    [
        pytest.param({}, id="no filter"),
        pytest.param({"kinds": (2,)}, id="the kind"),
        pytest.param({"statuses": (9,)}, id="the status"),
        pytest.param({"kinds": (2,), "statuses": (9,)}, id="both"),
        pytest.param({"piped_id": "piped-1"}, id="the piped"),
        pytest.param({"application_ids": ("application-1",)}, id="the application"),
    ],
)
async def test_values_that_another_version_wrote_are_listed(
    stores: Stores, database: Database, deployment: MakeDeployment, filters: dict[str, Any]
) -> None:
    unknown = deployment(kind=2, status=9, created_at=1, updated_at=1)
    row = insert(DEPLOYMENT).values(Id=row_id(unknown.id), Data=to_json(unknown, extra="web"))
    await database.write(lambda transaction: transaction.execute(row))
    listed = await stores.deployments.list(DeploymentFilter("p", **filters), PageRequest(5))
    assert [d.id for d in listed.items] == [unknown.id]


PROJECT = equal("ProjectId", "p")


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql"])
@pytest.mark.parametrize(
    ("conditions", "index", "count"),
    [
        pytest.param((equal("Status", 2),), "ext_deployment_status", 1, id="a status"),
        pytest.param(any_of("Status", 0, 1, 2), "ext_deployment_status", 3, id="statuses"),
        pytest.param(
            (*any_of("Status", 0, 1, 2), *any_of("Kind", 0, 1)),
            "ext_deployment_kind",
            6,
            id="statuses and kinds",
        ),
        pytest.param((equal("Kind", 1),), "ext_deployment_kind", 9, id="a kind, with any status"),
        pytest.param((equal("PipedId", "p"),), "ext_deployment_piped", 9, id="a piped"),
        pytest.param(
            (*any_of("ApplicationId", *map(str, range(9))), equal("Status", 2)),
            "ext_deployment_application",
            16,
            id="applications",
        ),
        pytest.param(
            any_of("ApplicationId", *map(str, range(100))),
            "ext_deployment_application",
            1,
            id="more applications than ranges",
        ),
        pytest.param(
            (*labelled({"env": "dev"}), equal("Status", 2)),
            "ext_deployment_status",
            1,
            id="a label and a status",
        ),
        pytest.param(
            (equal("DeploymentTraceCommitHash", "c"), equal("Status", 2)),
            "deployment_trace_commit_hash_updated_at_desc",
            1,
            id="a commit",
        ),
    ],
)
def test_the_index_of_a_page(
    engine: str, conditions: tuple[Condition, ...], index: str, count: int
) -> None:
    selection = Selection("Deployment", (PROJECT, *conditions), NEWEST_UPDATE, limit=9)
    chosen = choose_index(selection.shape, engine)
    assert chosen is not None
    assert (chosen.index.name, chosen.ranges) == (index, count)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql"])
def test_a_list_without_pages_is_the_whole_of_its_ranges(engine: str) -> None:
    unfinished = Selection("Deployment", (PROJECT, *any_of("Status", 0, 1, 2)), NEWEST_UPDATE)
    chosen = choose_index(unfinished.shape, engine)
    assert chosen is not None
    assert (chosen.index.name, chosen.ranges) == ("ext_deployment_status", 3)
    assert entry_statement(unfinished.shape, engine) is None


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(
            Selection("Deployment", (PROJECT,), NEWEST_UPDATE), id="all of a project without pages"
        ),
        pytest.param(
            Selection("Application", (PROJECT, equal("PipedId", "p")), NEWEST_UPDATE),
            id="applications without pages",
        ),
        pytest.param(Selection("Deployment", (PROJECT,), OLDEST, limit=9), id="another order"),
        pytest.param(
            Selection("Deployment", tuple(any_of("Id", b"a")), NEWEST_UPDATE, limit=9), id="ids"
        ),
        pytest.param(Selection("Deployment", (), NEWEST_UPDATE, limit=9), id="no condition"),
    ],
)
def test_a_list_without_ranges(selection: Selection) -> None:
    assert choose_index(selection.shape, "sqlite") is None
