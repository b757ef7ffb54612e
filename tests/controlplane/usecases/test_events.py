# SPDX-License-Identifier: Apache-2.0
"""Events: registration, lists, and the statuses that pipeds report."""

from collections.abc import Callable

import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.events import EventReport
from pipecd.model.errors import Denied, NotFound
from pipecd.model.eventkey import event_key
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.service.api_pb2 import RegisterEventRequest


def request_of(data: str = "v1", **labels: str) -> RegisterEventRequest:
    return RegisterEventRequest(name="image", data=data, labels=labels)


async def test_registering_an_event_stores_it_and_sends_a_signal(
    cases: UseCases, stores: Stores, bus: MemoryBus, program: ApiKeyCaller
) -> None:
    request = request_of(env="dev")
    request.contexts["Source-Commit"] = "abc"
    async with bus.subscribe() as signals:
        id = await cases.events.register(request, by=program)
        assert await anext(signals) == Signal(Topic.EVENT, id, "shop")
    event = await stores.events.get(id)
    assert event.event_key == event_key("image", {"env": "dev"})
    assert event.status == pb.EVENT_NOT_HANDLED
    assert event.status_description == "It is going to be replaced by v1"
    assert dict(event.contexts) == {"Source-Commit": "abc"}
    assert (await stores.traces.list("shop")).items == ()


async def test_latest_returns_the_newest_event_of_a_name_and_labels(
    cases: UseCases, program: ApiKeyCaller, piped: PipedCaller, advance: Callable[[float], None]
) -> None:
    with pytest.raises(NotFound, match=r"^no events found$"):
        await cases.events.latest("image", {}, by=piped)
    await cases.events.register(request_of("v1"), by=program)
    advance(1)
    await cases.events.register(request_of("v2"), by=program)
    await cases.events.register(request_of("v3", env="dev"), by=program)
    assert (await cases.events.latest("image", {}, by=piped)).data == "v2"
    assert (await cases.events.latest("image", {"env": "dev"}, by=piped)).data == "v3"


async def test_a_piped_lists_the_events_of_its_project_by_creation(
    cases: UseCases, program: ApiKeyCaller, piped: PipedCaller, advance: Callable[[float], None]
) -> None:
    for data in ("v1", "v2"):
        await cases.events.register(request_of(data), by=program)
        advance(1)
    listed = await cases.events.list_by_creation(EventFilter("shop"), descending=True, by=piped)
    assert [event.data for event in listed] == ["v2", "v1"]
    with pytest.raises(ForeignProject):
        await cases.events.list_by_creation(EventFilter("declared"), by=piped)


@pytest.mark.parametrize(
    ("status", "is_ended"),
    [
        pytest.param(pb.EVENT_SUCCESS, True, id="success"),
        pytest.param(pb.EVENT_FAILURE, True, id="failure"),
        pytest.param(pb.EVENT_OUTDATED, False, id="not outdated"),
    ],
)
async def test_an_event_is_handled_and_touched_by_the_status(
    *,
    cases: UseCases,
    stores: Stores,
    program: ApiKeyCaller,
    piped: PipedCaller,
    advance: Callable[[float], None],
    status: pb.EventStatus.ValueType,
    is_ended: bool,
) -> None:
    id = await cases.events.register(request_of(), by=program)
    before = await stores.events.get(id)
    advance(5)
    await cases.events.report_statuses([EventReport(id, status, "so it is")], by=piped)
    event = await stores.events.get(id)
    assert (event.status, event.status_description) == (status, "so it is")
    assert (event.handled_at > 0) is is_ended
    assert (event.updated_at > before.updated_at) is is_ended


async def test_a_piped_cannot_report_the_status_of_another_projects_event(
    cases: UseCases, stores: Stores, stranger: User, piped: PipedCaller
) -> None:
    id = await cases.events.register(request_of(), by=stranger)
    with pytest.raises(Denied):
        await cases.events.report_statuses([EventReport(id, pb.EVENT_SUCCESS, "x")], by=piped)
    assert (await stores.events.get(id)).status == pb.EVENT_NOT_HANDLED


async def test_users_list_events_newest_update_first(
    cases: UseCases, program: ApiKeyCaller, viewer: User, advance: Callable[[float], None]
) -> None:
    for data in ("v1", "v2"):
        await cases.events.register(request_of(data), by=program)
        advance(1)
    listed = await cases.events.list(EventFilter("shop"), by=viewer)
    assert [event.data for event in listed.items] == ["v2", "v1"]
    with pytest.raises(Denied):
        await cases.events.register(request_of(), by=viewer)
