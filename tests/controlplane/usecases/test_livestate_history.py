# SPDX-License-Identifier: Apache-2.0
"""Events of live resources, and the health of applications, from the snapshots of pipeds."""

from collections.abc import Callable

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.livestate_history import (
    MAX_EVENTS,
    ResourceEventType,
    decode_events,
    encode_events,
    resource_events,
)
from pipecd.model.errors import Denied
from pipecd.model.health import HealthStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import ResourceState
from servers.live_states import resources, snapshot


def resource(id: str, health: int = 1, text: str = "") -> ResourceState:
    status = ResourceState.HealthStatus.ValueType(health)
    return ResourceState(id=id, name=id, health_status=status, health_description=text)


def test_events_between_two_snapshots() -> None:
    before = [resource("gone"), resource("same"), resource("sick"), resource("moves", 2, "x")]
    after = [
        resource("same"),
        resource("sick", 2, "it crashes"),
        resource("moves", 2, "Progressing: 1 of 2"),
        resource("new"),
    ]
    events = resource_events(before, after, at=7)
    assert [(e.id, e.type, e.health, e.text) for e in events] == [
        ("gone", ResourceEventType.REMOVED, HealthStatus.HEALTHY, ""),
        ("sick", ResourceEventType.HEALTH, HealthStatus.UNHEALTHY, "it crashes"),
        ("moves", ResourceEventType.HEALTH, HealthStatus.PROGRESSING, "1 of 2"),
        ("new", ResourceEventType.APPEARED, HealthStatus.HEALTHY, ""),
    ]
    assert decode_events(encode_events(events)) == events
    assert len(decode_events(encode_events(events * MAX_EVENTS))) == MAX_EVENTS


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[{"at": 1}]', b"\xff"])
def test_damaged_events_are_none(content: bytes) -> None:
    assert decode_events(content) == ()


async def test_reports_become_events_and_the_health_of_the_application(
    *,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
    admin: User,
    stranger: User,
    advance: Callable[[float], None],
) -> None:
    assert await cases.livestate.health(by=admin) == {}
    await cases.livestate.report(snapshot(application, *resources(2, 1, broken=False)), by=piped)
    assert await cases.livestate.events(application.id, by=admin) == ()
    assert await cases.livestate.health(by=admin) == {application.id: HealthStatus.HEALTHY}
    advance(60)
    await cases.livestate.report(snapshot(application, *resources(2, 1, broken=True)), by=piped)
    (event,) = await cases.livestate.events(application.id, by=admin)
    assert (event.id, event.text) == ("web-1-0", "CrashLoopBackOff")
    assert await cases.livestate.health(by=admin) == {application.id: HealthStatus.UNHEALTHY}
    assert await cases.livestate.health(by=stranger) == {}
    with pytest.raises(Denied):
        await cases.livestate.events(application.id, by=stranger)
