# SPDX-License-Identifier: Apache-2.0
"""Filters, orders and pages of lists."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.controlplane.datastore import documents
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import EVERYTHING, PageRequest
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.query import row_id
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import NotFound, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.model.trace_pb2 import DeploymentTrace

MakeDeployment = Callable[..., Deployment]


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        pytest.param(ApplicationFilter("p"), "abcd", id="all of a project"),
        pytest.param(ApplicationFilter("p", enabled=True), "abc", id="only enabled ones"),
        pytest.param(ApplicationFilter("p", enabled=False), "d", id="only disabled ones"),
        pytest.param(ApplicationFilter("p", kinds=(0,)), "acd", id="a kind that is zero"),
        pytest.param(ApplicationFilter("p", kinds=(1, 5)), "b", id="one of several kinds"),
        pytest.param(
            ApplicationFilter("p", kinds=(5, 4, 3, 1, 0), sync_statuses=tuple(range(7))),
            "abcd",
            id="every kind and every sync status",
        ),
        pytest.param(ApplicationFilter("p", sync_statuses=(3,)), "c", id="a sync status"),
        pytest.param(ApplicationFilter("p", sync_statuses=(0,)), "abd", id="no sync status yet"),
        pytest.param(ApplicationFilter("p", name="a"), "a", id="a name"),
        pytest.param(ApplicationFilter("p", piped_id="two"), "b", id="a piped"),
        pytest.param(ApplicationFilter("p", labels={"env": "dev"}), "ab", id="a label"),
        pytest.param(
            ApplicationFilter("p", labels={"env": "dev", "team": "x"}), "b", id="all of the labels"
        ),
        pytest.param(
            ApplicationFilter("p", labels={"env": "x"}), "", id="a label with another value"
        ),
        pytest.param(ApplicationFilter("p", labels={"": ""}), "", id="an empty label"),
        pytest.param(
            ApplicationFilter(
                "p", enabled=True, kinds=(0, 1), labels={"env": "dev"}, piped_id="one"
            ),
            "a",
            id="all filters together",
        ),
        pytest.param(ApplicationFilter("' OR 1=1 --"), "", id="a project that looks like SQL"),
    ],
)
async def test_applications_are_filtered(
    stores: Stores,
    application: Callable[..., Application],
    filter: ApplicationFilter,
    names: str,
) -> None:
    state = ApplicationSyncState(timestamp=1)
    state.status = 3  # type: ignore[assignment]
    for document in (
        application(name="a", piped_id="one", labels={"env": "dev"}),
        application(name="b", piped_id="two", labels={"env": "dev", "team": "x"}, kind=1),
        application(name="c", piped_id="one", sync_state=state),
        application(name="d", piped_id="one", disabled=True),
        application(name="deleted", piped_id="one", deleted=True, labels={"env": "dev"}),
        application(name="a", project_id="other", labels={"env": "dev"}),
    ):
        await stores.applications.add(document)
    for page in (EVERYTHING, PageRequest(size=10)):
        listed = await stores.applications.list(filter, page)
        assert "".join(sorted(a.name for a in listed.items)) == names


async def test_a_label_filter_returns_the_same_for_rare_and_common_labels(
    stores: Stores, application: Callable[..., Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        labels = {"env": "dev", "team": str(number % 2)}
        await stores.applications.add(application(name=str(number), labels=labels))
    for few in (0, 3, 6):
        monkeypatch.setattr(documents, "RARE_LABEL_LIMIT", few)
        for labels, names in (
            ({"env": "dev"}, "012345"),
            ({"env": "dev", "team": "1"}, "135"),
            ({"env": "dev", "team": "2"}, ""),
        ):
            listed = await stores.applications.list(ApplicationFilter("p", labels=labels))
            assert "".join(sorted(a.name for a in listed.items)) == names
    assert listed.cursor == ""


async def test_list_enabled_returns_the_enabled_applications_of_a_piped(
    stores: Stores, application: Callable[..., Application]
) -> None:
    for name, fields in {
        "mine": {},
        "disabled": {"disabled": True},
        "deleted": {"deleted": True},
        "of another piped": {"piped_id": "piped-2"},
        "of another project": {"project_id": "q"},
    }.items():
        await stores.applications.add(application(name=name, **fields))
    listed = await stores.applications.list_enabled("p", "piped-1")
    assert [a.name for a in listed] == ["mine"]


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        pytest.param(DeploymentFilter("p"), ["web", "api", "job"], id="newest update first"),
        pytest.param(DeploymentFilter("p", statuses=(0, 2)), ["web", "job"], id="statuses"),
        pytest.param(DeploymentFilter("p", kinds=(1,)), ["api"], id="kinds"),
        pytest.param(
            DeploymentFilter("p", statuses=tuple(range(7)), kinds=(0, 3, 4, 5)),
            ["web", "job"],
            id="every status, not every kind",
        ),
        pytest.param(
            DeploymentFilter("p", statuses=tuple(range(6)), kinds=(1, 3, 4, 5)),
            ["api"],
            id="many statuses and kinds",
        ),
        pytest.param(
            DeploymentFilter("p", application_ids=("1", "2", "no such")),
            ["api", "job"],
            id="applications",
        ),
        pytest.param(DeploymentFilter("p", application_name="web"), ["web"], id="a name"),
        pytest.param(DeploymentFilter("p", text="We"), ["web"], id="a part of a name"),
        pytest.param(DeploymentFilter("p", text="hAng"), ["web", "api", "job"], id="a message"),
        pytest.param(DeploymentFilter("p", text="main"), [], id="the branch is not searched"),
        pytest.param(DeploymentFilter("p", text="C0ff"), ["web", "api", "job"], id="a commit"),
        pytest.param(DeploymentFilter("p", text="ffee"), [], id="the middle of a commit"),
        pytest.param(DeploymentFilter("p", text="w%b"), [], id="a wildcard"),
        pytest.param(DeploymentFilter("p", text="_eb"), [], id="another wildcard"),
        pytest.param(DeploymentFilter("p", text='"é'), [], id="a text that JSON escapes"),
        pytest.param(DeploymentFilter("p", trace_commit_hash="abc"), ["api"], id="a traced commit"),
        pytest.param(DeploymentFilter("p", labels={"env": "dev"}), ["job"], id="a label"),
    ],
)
async def test_deployments_are_filtered(
    stores: Stores, deployment: MakeDeployment, filter: DeploymentFilter, names: list[str]
) -> None:
    for document in (
        deployment(application_name="job", application_id="1", updated_at=1, labels={"env": "dev"}),
        deployment(
            application_name="api",
            application_id="2",
            updated_at=2,
            status=4,
            kind=1,
            deployment_trace_commit_hash="abc",
        ),
        deployment(application_name="web", application_id="3", updated_at=3, status=2),
        deployment(application_name="web", project_id="other"),
    ):
        await stores.deployments.add(document)
    listed = await stores.deployments.list(filter)
    assert [d.application_name for d in listed.items] == names


async def test_a_piped_gets_its_deployments_that_are_not_completed_oldest_first(
    stores: Stores, deployment: MakeDeployment
) -> None:
    for status in range(7):
        await stores.deployments.add(deployment(status=status, created_at=100 - status))
    await stores.deployments.add(deployment(piped_id="piped-2"))
    listed = await stores.deployments.list_not_completed("piped-1")
    assert [d.status for d in listed] == [3, 2, 1, 0]


async def test_a_piped_gets_its_unhandled_commands_oldest_first(
    stores: Stores, command: Callable[..., Command]
) -> None:
    for name, fields in {
        "second": {"created_at": 20},
        "first": {"created_at": 10},
        "handled": {"created_at": 5, "status": 1},
        "of another piped": {"created_at": 15, "piped_id": "piped-2"},
    }.items():
        await stores.commands.add(command(commander=name, **fields))
    listed = await stores.commands.list_unhandled("piped-1")
    assert [c.commander for c in listed] == ["first", "second"]
    listed = await stores.commands.list_unhandled_before(20)
    assert [c.commander for c in listed] == ["first", "of another piped"]
    assert await stores.commands.list_unhandled_before(0) == ()


async def test_events_are_listed_by_creation_and_the_latest_is_returned(
    stores: Stores, event: Callable[..., Event]
) -> None:
    for at, fields in {
        1: {"data": "v1", "status": 1},
        2: {"data": "v2", "labels": {"app": "web"}},
        3: {"data": "v3", "event_key": "other"},
        4: {"data": "v4", "name": "chart"},
    }.items():
        await stores.events.add(event(created_at=at, updated_at=10 - at, **fields))
    await stores.events.add(event(project_id="q", created_at=9))

    async def data(filter: EventFilter, **order: bool) -> list[str]:
        return [e.data for e in await stores.events.list_by_creation(filter, **order)]

    assert await data(EventFilter("p")) == ["v1", "v2", "v3", "v4"]
    assert await data(EventFilter("p"), descending=True) == ["v4", "v3", "v2", "v1"]
    assert await data(EventFilter("p", created_from=2, created_to=4)) == ["v2", "v3"]
    assert await data(EventFilter("p", statuses=(0,))) == ["v2", "v3", "v4"]
    assert await data(EventFilter("p", name="chart")) == ["v4"]
    assert await data(EventFilter("p", labels={"app": "web"})) == ["v2"]
    assert (await stores.events.get_latest("p", "image", "key")).data == "v2"
    with pytest.raises(NotFound, match="no events found"):
        await stores.events.get_latest("p", "image", "unknown")
    listed = await stores.events.list(EventFilter("p"))
    assert [e.data for e in listed.items] == ["v1", "v2", "v3", "v4"]


async def test_api_keys_are_listed_by_project_and_state(
    stores: Stores, api_key: Callable[..., Any]
) -> None:
    await stores.api_keys.add(api_key(name="new", created_at=2))
    await stores.api_keys.add(api_key(name="old", created_at=1, disabled=True))
    await stores.api_keys.add(api_key(name="other", project_id="q"))
    assert [k.name for k in await stores.api_keys.list("p")] == ["old", "new"]
    assert [k.name for k in await stores.api_keys.list("p", enabled=True)] == ["new"]
    assert [k.name for k in await stores.api_keys.list("p", enabled=False)] == ["old"]


async def test_chains_and_traces_are_listed_newest_update_first(stores: Stores) -> None:
    for at in (1, 2):
        chain = DeploymentChain(id=new_id(), project_id="p", created_at=at, updated_at=at)
        await stores.chains.add(chain)
        trace = DeploymentTrace(
            id=new_id(), project_id="p", commit_hash=f"c{at}", commit_url="u", updated_at=at
        )
        await stores.traces.add(trace)
    assert [c.updated_at for c in (await stores.chains.list("p")).items] == [2, 1]
    assert [t.commit_hash for t in (await stores.traces.list("p")).items] == ["c2", "c1"]
    assert [t.commit_hash for t in (await stores.traces.list("p", "c1")).items] == ["c1"]


async def test_documents_with_the_same_update_time_are_ordered_by_row_id(
    stores: Stores, deployment: MakeDeployment
) -> None:
    ids = [new_id() for _ in range(9)]
    for id in ids:
        await stores.deployments.add(deployment(id=id, updated_at=7))
    listed = await stores.deployments.list(DeploymentFilter("p"))
    assert [d.id for d in listed.items] == sorted(ids, key=row_id)


async def test_the_last_page_has_no_cursor_even_when_it_is_full(
    stores: Stores, deployment: MakeDeployment
) -> None:
    for at in range(1, 5):
        await stores.deployments.add(deployment(updated_at=at))
    first = await stores.deployments.list(DeploymentFilter("p"), PageRequest(size=2))
    second = await stores.deployments.list(
        DeploymentFilter("p"), PageRequest(size=2, cursor=first.cursor)
    )
    assert [d.updated_at for d in first.items] == [4, 3]
    assert [d.updated_at for d in second.items] == [2, 1]
    assert first.cursor
    assert second.cursor == ""


async def test_min_updated_at_excludes_older_documents(
    stores: Stores, deployment: MakeDeployment
) -> None:
    for at in range(1, 5):
        await stores.deployments.add(deployment(updated_at=at))
    page = PageRequest(size=10, min_updated_at=3)
    listed = await stores.deployments.list(DeploymentFilter("p"), page)
    assert [d.updated_at for d in listed.items] == [4, 3]


async def test_a_list_continues_from_a_cursor_of_upstream(
    stores: Stores, deployment: MakeDeployment
) -> None:
    for at in (1_700_000_099, 1_700_000_100, 1_700_000_101):
        await stores.deployments.add(deployment(updated_at=at))
    # The position of a document that is not in this database.
    cursor = "eyJJZCI6ImY0N2FjMTBiLTU4Y2MtNDM3Mi1hNTY3LTBlMDJiMmMzZDQ3OSIsIlVwZGF0ZWRBdCI6MTcwMDAwMDEwMH0="
    listed = await stores.deployments.list(DeploymentFilter("p"), PageRequest(5, cursor))
    assert [d.updated_at for d in listed.items][-1] == 1_700_000_099
    assert 1_700_000_101 not in [d.updated_at for d in listed.items]


async def test_a_malformed_cursor_is_refused(stores: Stores) -> None:
    with pytest.raises(UserMistake):
        await stores.deployments.list(DeploymentFilter("p"), PageRequest(5, "garbage"))


async def test_a_list_can_be_filtered_by_thousands_of_ids(
    stores: Stores, deployment: MakeDeployment
) -> None:
    matching = deployment(application_id="application-700")
    await stores.deployments.add(matching)
    ids = tuple(f"application-{i}" for i in range(5000))
    listed = await stores.deployments.list(DeploymentFilter("p", application_ids=ids))
    assert [d.id for d in listed.items] == [matching.id]
