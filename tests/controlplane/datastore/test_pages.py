# SPDX-License-Identifier: Apache-2.0
"""The pages of a list together contain each document once."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.query import row_id
from pipecd.controlplane.datastore.schema import DEPLOYMENT
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.document import to_json
from pipecd.model.ids import new_id
from pipecd.proto.model.deployment_pb2 import Deployment

MakeDeployment = Callable[..., Deployment]

Times = st.lists(st.integers(min_value=1, max_value=4), max_size=12)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(times=Times, size=st.integers(1, 5), updated=st.lists(st.integers(0, 11), max_size=6))
async def test_pages_contain_each_document_once_while_others_write(
    stores: Stores, deployment: MakeDeployment, times: list[int], size: int, updated: list[int]
) -> None:
    """A document that is not updated meanwhile is listed once, and no document is listed twice."""
    filter = DeploymentFilter(project=new_id())
    documents = [deployment(updated_at=at, project_id=filter.project) for at in times]
    for document in documents:
        await stores.deployments.add(document)
    complete = (await stores.deployments.list(filter)).items
    touched: set[str] = set()
    listed_ids: list[str] = []
    cursor, waiting = "", [documents[i] for i in updated if i < len(documents)]
    while True:
        page = await stores.deployments.list(filter, PageRequest(size, cursor))
        listed_ids += [d.id for d in page.items]
        cursor = page.cursor
        if not cursor:
            break
        if waiting:
            document = waiting.pop()
            touched.add(document.id)
            await stores.deployments.update(document.id, lambda _: None)
            await stores.deployments.add(deployment(project_id=filter.project))
    assert len(listed_ids) == len(set(listed_ids))
    assert [id for id in listed_ids if id not in touched] == [
        d.id for d in complete if d.id not in touched
    ]


@pytest.mark.parametrize(
    "filters",
    [
        pytest.param({"kinds": (1,)}, id="one other column"),
        pytest.param({"kinds": (1,), "statuses": (2,)}, id="two other columns"),
        pytest.param({"kinds": (0, 1, 3), "statuses": (2, 4)}, id="several values of each"),
        pytest.param(
            {"kinds": (3, 1, 1), "statuses": (0, 1, 2, 3, 5, 6)}, id="two kinds, all but a status"
        ),
        pytest.param(
            {"kinds": (1, 3, 4, 5), "statuses": (4,), "labels": {"env": "dev"}},
            id="all but a kind, with a label",
        ),
        pytest.param(
            {"application_ids": tuple(f"a{i}" for i in range(20)), "statuses": (0, 1, 2, 3, 5, 6)},
            id="many applications",
        ),
        pytest.param(
            {"application_ids": ("a3", "a4"), "application_name": "web", "kinds": (0, 1, 3, 4)},
            id="two applications, a name and several kinds",
        ),
        pytest.param({"statuses": tuple(range(7)), "kinds": (1, 3, 4)}, id="very many values"),
        pytest.param({"kinds": (1,), "labels": {"env": "dev"}}, id="a label too"),
        pytest.param({"application_name": "WEB", "statuses": (2,)}, id="a name in another case"),
        pytest.param({"kinds": (4,), "statuses": (2,)}, id="no match"),
    ],
)
async def test_pages_of_a_filtered_list_contain_each_match_once(
    stores: Stores,
    engine: str,
    deployment: MakeDeployment,
    filters: dict[str, Any],
) -> None:
    for number in range(24):
        await stores.deployments.add(
            deployment(
                project_id="other" if number % 8 == 7 else "p",
                # With statistics of several ids, Dolt plans a list of thousands for minutes.
                application_id="a3" if engine == "dolt" else f"a{number % 7}",
                application_name="WEB" if number % 5 == 0 else "web",
                kind=(0, 1, 3)[number % 3],
                status=(2, 4)[number % 2],
                labels={"env": "dev"} if number % 4 < 2 else {},
                # Four of them in each second.
                updated_at=1 + number // 4,
            )
        )
    everything = (await stores.deployments.list(DeploymentFilter("p"))).items
    filter = DeploymentFilter("p", **filters)
    for size in (2, 5, 24):
        listed_ids: list[str] = []
        page = PageRequest(size, min_updated_at=1)
        # Stops if the pages do not advance.
        while len(listed_ids) <= len(everything):
            listed = await stores.deployments.list(filter, page)
            listed_ids += [d.id for d in listed.items]
            if not listed.cursor:
                break
            page = PageRequest(size, listed.cursor, min_updated_at=1)
        assert listed_ids == [d.id for d in everything if _matches(d, filter)]


def _matches(document: Deployment, filter: DeploymentFilter) -> bool:
    return (
        (not filter.kinds or document.kind in filter.kinds)
        and (not filter.statuses or document.status in filter.statuses)
        and (not filter.application_ids or document.application_id in filter.application_ids)
        and filter.application_name in ("", document.application_name)
        and filter.labels.items() <= document.labels.items()
    )


async def test_a_kind_that_is_not_in_the_enum_does_not_match_a_filter_by_most_kinds(
    stores: Stores,
    database: Database,
    deployment: MakeDeployment,
) -> None:
    known, unknown = (deployment(kind=k, created_at=1, updated_at=1) for k in (1, 2))
    await stores.deployments.add(known)
    # A row that another version wrote.
    row = insert(DEPLOYMENT).values(Id=row_id(unknown.id), Data=to_json(unknown, extra="web"))
    await database.write(lambda transaction: transaction.execute(row))
    filter = DeploymentFilter("p", kinds=(1, 3, 4, 5), statuses=(0, 1, 2, 3, 5, 6))
    listed = await stores.deployments.list(filter, PageRequest(5))
    assert [d.id for d in listed.items] == [known.id]
