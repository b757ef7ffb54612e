# SPDX-License-Identifier: Apache-2.0
"""The client of the control plane: its errors, and the retry policy of each RPC."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from faults.network import TcpProxy
from pipecd.controlplane.api import wakeups
from pipecd.model.backoff import Backoff
from pipecd.model.errors import (
    Denied,
    NotFound,
    PipecdError,
    Unauthenticated,
    Unavailable,
    UserMistake,
)
from pipecd.piped import control_plane_client
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.retry import A_FEW_TIMES, ONCE, SHORT_ONCE, UNTIL_AVAILABLE, UNTIL_IT_WORKS
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.wakeups_pb2 import Wakeup
from pipecd.wire import channel, reconnect
from pipecd.wire.server import grpc_server
from servers.control_plane import GatedControlPlane, OpenControlPlane
from servers.polling import eventually

# Shortens every backoff.
FAST = 0.00001


@asynccontextmanager
async def fast_client(plane: GatedControlPlane) -> AsyncGenerator[ControlPlaneClient]:
    async with plane.piped.api() as api:
        api._chance = lambda: FAST
        yield api


def state_report() -> pb.ReportApplicationDeployingStatusRequest:
    return pb.ReportApplicationDeployingStatusRequest(application_id="x", deploying=True)


async def test_errors_have_pipecd_types_and_final_ones_are_not_retried(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, fast_client(plane) as api:
        with pytest.raises(NotFound):
            await api.get_deployment(
                pb.GetDeploymentRequest(id="00000000-0000-4000-8000-000000000009")
            )
        with pytest.raises(UserMistake, match=r"invalid request: invalid GetDeploymentRequest\.Id"):
            await api.get_deployment(pb.GetDeploymentRequest())
        plane.gate.refusals["ReportApplicationDeployingStatus"] = grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(Denied):
            await api.report_application_deploying_status(state_report())
        assert plane.gate.count("GetDeployment") == 2
        assert plane.gate.count("ReportApplicationDeployingStatus") == 1


async def test_a_rejected_key_is_reported_with_a_remedy(open_plane: OpenControlPlane) -> None:
    async with (
        open_plane() as plane,
        ControlPlaneClient.connect(
            plane.address,
            project="shop",
            piped=plane.piped.id,
            key=lambda: "wrong",
            insecure=True,
        ) as api,
    ):
        with pytest.raises(Unauthenticated, match="put the new key into pipedKeyFile"):
            await api.list_applications(pb.ListApplicationsRequest())
        with pytest.raises(Unauthenticated):
            await api.report_piped_meta(pb.ReportPipedMetaRequest(config="{}"))


async def test_a_disabled_piped_waits_and_continues_when_it_is_enabled(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, fast_client(plane) as api:
        api._authorization_source._chance = lambda: FAST
        listing = pb.ListApplicationsRequest()
        await api.list_applications(listing)
        await plane.cases.pipeds.disable(plane.piped.id, by=plane.admin)
        with pytest.raises(Unauthenticated, match="enable it"):
            await api.list_applications(listing)
        # The control plane is not called before the backoff has passed.
        before = plane.gate.count("ListApplications")
        for _ in range(20):
            with pytest.raises(Unauthenticated):
                await api.list_applications(listing)
        assert plane.gate.count("ListApplications") == before
        report = asyncio.create_task(api.report_stat(pb.ReportStatRequest()))
        registration = asyncio.create_task(
            api.report_piped_meta(pb.ReportPipedMetaRequest(config="{}"))
        )
        with pytest.raises(Unauthenticated):
            await report
        await plane.cases.pipeds.enable(plane.piped.id, by=plane.admin)
        await eventually(registration.done)
        await registration
        await api.list_applications(listing)


async def test_a_piped_whose_key_is_replaced_takes_the_new_one_from_its_file(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane:
        key = [plane.piped.key]
        async with ControlPlaneClient.connect(
            plane.address,
            project="shop",
            piped=plane.piped.id,
            key=lambda: key[0],
            insecure=True,
        ) as api:
            api._chance = lambda: FAST
            await api.list_applications(pb.ListApplicationsRequest())
            fresh = await plane.cases.pipeds.add_key(plane.piped.id, by=plane.admin)
            await plane.cases.pipeds.delete_old_keys(plane.piped.id, by=plane.admin)
            key[0] = fresh
            await api.report_piped_meta(pb.ReportPipedMetaRequest(config="{}"))
            await api.list_applications(pb.ListApplicationsRequest())


async def test_an_unavailable_control_plane_is_reported_without_the_key() -> None:
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(30):
            async with _short_connect("127.0.0.1:1"):
                pass
    assert "s3cret" not in str(caught.value)


def _short_connect(address: str) -> Any:
    from pipecd.wire.channel import open_channel
    from pipecd.wire.credentials import piped_token

    token = piped_token("p", "i", "s3cret")
    return open_channel(address, authorization=token, insecure=True, connect_timeout=0.05)


async def test_a_control_plane_that_is_unavailable_at_the_start_is_retried_and_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "_WARN_AFTER", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = f"127.0.0.1:{port}"
    connecting = ControlPlaneClient.connect(
        address, project="shop", piped="p", key=lambda: "s3cret", insecure=True
    )
    with capture_logs() as logs:
        entering = asyncio.create_task(connecting.__aenter__())
        await eventually(lambda: logs)
        (warning,) = logs
        assert (warning["event"], warning["address"]) == ("server unavailable, retrying", address)
        assert f"nothing listens on port {port} of 127.0.0.1" in warning["error"]
        assert "check the port, and that the control plane runs" in warning["error"]
        assert "s3cret" not in str(warning)
        assert not entering.done()
        async with grpc_server([], host="127.0.0.1", port=port, grace=0):
            await entering
            await connecting.__aexit__(None, None, None)
    assert [entry["event"] for entry in logs[1:]] == ["connected to the server"]


# RPCs that piped does not call: those of v0 and of upstream's newest versions.
NOT_CALLED = {
    "GetLatestEvent",
    "PutLatestAnalysisResult",
    "ReportApplicationLiveStateEvents",
    "SaveDeploymentMetadata",
}


POLICIES = (ONCE, SHORT_ONCE, A_FEW_TIMES, UNTIL_AVAILABLE, UNTIL_IT_WORKS)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


async def test_every_rpc_of_the_service_has_a_policy(open_plane: OpenControlPlane) -> None:
    service = pb.DESCRIPTOR.services_by_name["PipedService"]
    async with open_plane() as plane, plane.piped.api() as api:
        rpcs = {method.name: getattr(api, _snake(method.name), None) for method in service.methods}
    assert {name for name, rpc in rpcs.items() if rpc is None} == NOT_CALLED
    for name, rpc in rpcs.items():
        if rpc is not None:
            assert rpc.policy in POLICIES, name
            assert rpc.method.current()._method.decode().rpartition("/")[2] == name


def deployment_request() -> pb.GetDeploymentRequest:
    return pb.GetDeploymentRequest(id="00000000-0000-4000-8000-000000000009")


@pytest.mark.parametrize(
    ("call", "code", "attempts"),
    [
        pytest.param(
            lambda api: api.list_applications(pb.ListApplicationsRequest()),
            grpc.StatusCode.UNAVAILABLE,
            1,
            id="a list is polled anyway",
        ),
        pytest.param(
            lambda api: api.report_stage_logs(pb.ReportStageLogsRequest()),
            grpc.StatusCode.UNAVAILABLE,
            3,
            id="lines of a running stage are sent again with the next ones",
        ),
        pytest.param(
            lambda api: api.report_stage_logs(pb.ReportStageLogsRequest()),
            grpc.StatusCode.INTERNAL,
            3,
            id="a few times counts errors of the server too",
        ),
        pytest.param(
            lambda api: api.get_deployment(deployment_request()),
            grpc.StatusCode.INTERNAL,
            10,
            id="a request that the server cannot handle blocks nobody forever",
        ),
        pytest.param(
            lambda api: api.report_application_deploying_status(state_report()),
            grpc.StatusCode.INTERNAL,
            10,
            id="a deploying flag that the server cannot store blocks no deployment",
        ),
        pytest.param(
            lambda api: api.report_application_most_recent_deployment(
                pb.ReportApplicationMostRecentDeploymentRequest(application_id="x")
            ),
            grpc.StatusCode.INTERNAL,
            10,
            id="a reference that the server cannot store blocks no trigger",
        ),
        pytest.param(
            lambda api: api.save_deployment_shared_metadata(
                pb.SaveDeploymentSharedMetadataRequest(deployment_id="d")
            ),
            grpc.StatusCode.INTERNAL,
            10,
            id="a reason for waiting that the server cannot store blocks no deployment",
        ),
        pytest.param(
            lambda api: api.report_application_deploying_status(state_report()),
            grpc.StatusCode.PERMISSION_DENIED,
            1,
            id="a refusal is final",
        ),
    ],
)
async def test_a_call_is_given_up_after_so_many_attempts(
    open_plane: OpenControlPlane,
    call: Callable[[ControlPlaneClient], Awaitable[Any]],
    code: grpc.StatusCode,
    attempts: int,
) -> None:
    async with open_plane() as plane, fast_client(plane) as api:
        plane.gate.refusals["*"] = code
        with pytest.raises(PipecdError):
            await call(api)
        assert len(plane.gate.calls) == attempts


@pytest.mark.parametrize(
    ("call", "code"),
    [
        pytest.param(
            lambda api: api.get_deployment(deployment_request()),
            grpc.StatusCode.UNAVAILABLE,
            id="a read outlasts an outage",
        ),
        pytest.param(
            lambda api: api.get_deployment(deployment_request()),
            grpc.StatusCode.DEADLINE_EXCEEDED,
            id="a control plane that is too slow counts as unavailable",
        ),
        pytest.param(
            lambda api: api.report_application_deploying_status(state_report()),
            grpc.StatusCode.UNAVAILABLE,
            id="a report about an application outlasts an outage",
        ),
        pytest.param(
            lambda api: api.report_deployment_status_changed(
                pb.ReportDeploymentStatusChangedRequest(deployment_id="d")
            ),
            grpc.StatusCode.INTERNAL,
            id="a report about a deployment outlasts errors of the server",
        ),
        pytest.param(
            lambda api: api.report_final_stage_logs(
                pb.ReportStageLogsFromLastCheckpointRequest(deployment_id="d", stage_id="s")
            ),
            grpc.StatusCode.UNAVAILABLE,
            id="the end of a log outlasts an outage",
        ),
    ],
)
async def test_a_call_is_repeated_until_it_works(
    open_plane: OpenControlPlane,
    call: Callable[[ControlPlaneClient], Coroutine[Any, Any, Any]],
    code: grpc.StatusCode,
) -> None:
    async with open_plane() as plane, fast_client(plane) as api:
        plane.gate.refusals["*"] = code
        with capture_logs() as logs:
            calling = asyncio.create_task(call(api))
            await eventually(lambda: len(plane.gate.calls) > 12)
            assert not calling.done()
            plane.gate.refusals.clear()
            # The control plane has no such deployment or application.
            with pytest.raises((NotFound, UserMistake)):
                await calling
        assert logs[0]["attempts"] == 1
        assert logs[0]["rpc"] == plane.gate.calls[0]
        unavailable = code is not grpc.StatusCode.INTERNAL
        assert ("unavailable" in logs[0]["event"]) is unavailable


async def test_the_backoff_grows_and_is_jittered(open_plane: OpenControlPlane) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        chances = iter([0.001, 0.0001] * 6)
        api._chance = lambda: next(chances)
        plane.gate.refusals["*"] = grpc.StatusCode.INTERNAL
        pauses: list[float] = []
        api.wait_until_available = _recording(pauses)
        with capture_logs() as logs, pytest.raises(Unavailable):
            await api.get_deployment(deployment_request())
    assert len(logs) == 9
    assert pauses == pytest.approx(
        [0.002, 0.0004, 0.008, 0.0016, 0.032, 0.006, 0.06, 0.006, 0.06], rel=0.01
    )


def _recording(pauses: list[float]) -> Callable[[float], Coroutine[Any, Any, None]]:
    async def wait(pause: float) -> None:
        pauses.append(pause)

    return wait


async def test_a_call_ends_with_its_caller(open_plane: OpenControlPlane) -> None:
    async with open_plane() as plane, fast_client(plane) as api:
        plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
        report = asyncio.create_task(api.report_application_deploying_status(state_report()))
        await eventually(lambda: plane.gate.calls)
        report.cancel()
        with pytest.raises(asyncio.CancelledError):
            await report


async def test_a_successful_call_wakes_those_that_wait(open_plane: OpenControlPlane) -> None:
    async with open_plane() as plane, fast_client(plane) as api:
        api._chance = lambda: 0.9
        plane.gate.refusals["SaveStageMetadata"] = grpc.StatusCode.UNAVAILABLE
        waiting = asyncio.create_task(
            api.save_stage_metadata(pb.SaveStageMetadataRequest(deployment_id="d", stage_id="s"))
        )
        await eventually(lambda: plane.gate.count("SaveStageMetadata") == 1)
        del plane.gate.refusals["SaveStageMetadata"]
        await api.list_applications(pb.ListApplicationsRequest())
        async with asyncio.timeout(1):
            with pytest.raises(NotFound):
                await waiting


async def test_calls_that_back_off_are_woken_soon_after_an_outage(
    open_plane: OpenControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane_client, "_PROBE_INTERVAL", 0.1)
    monkeypatch.setattr(control_plane_client, "_BACKOFF", Backoff(first=60, longest=60))
    async with open_plane() as plane, plane.piped.api() as api:
        api._chance = lambda: 0.9
        plane.gate.close()
        waiting = asyncio.create_task(api.get_deployment(deployment_request()))
        await eventually(lambda: plane.gate.count("GetDesiredVersion") > 1)
        assert plane.gate.count("GetDeployment") == 1
        plane.gate.open()
        async with asyncio.timeout(3):
            with pytest.raises(NotFound):
                await waiting
        # Nothing probes a control plane that is available.
        probes = plane.gate.count("GetDesiredVersion")
        await api.list_applications(pb.ListApplicationsRequest())
        await asyncio.sleep(0.3)
        assert plane.gate.count("GetDesiredVersion") == probes


async def test_a_call_on_a_connection_that_fell_silent_is_repeated_on_a_new_one(
    open_plane: OpenControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "_PROBE_TIMEOUT", Backoff(first=0.2, longest=30))
    async with (
        open_plane() as plane,
        TcpProxy([int(plane.address.rpartition(":")[2])]).serve() as proxy,
        ControlPlaneClient.connect(
            f"127.0.0.1:{proxy.port}",
            project="shop",
            piped=plane.piped.id,
            key=lambda: plane.piped.key,
            insecure=True,
        ) as api,
    ):
        await api.list_applications(pb.ListApplicationsRequest())
        proxy.silence()
        async with asyncio.timeout(5):
            # Also a call that is made once only: the control plane was never unavailable.
            await api.list_applications(pb.ListApplicationsRequest())
        assert proxy.accepted == 2
        proxy.silence()
        async with asyncio.timeout(5):
            # Spans are sent once; losing them must not look like the end of the caller.
            with pytest.raises(Unavailable):
                await api.export_traces(b"")


@pytest.mark.parametrize(
    ("attempts", "deadline"), [(0, 8.0), (1, 16.0), (2, 30.0), (3, 30.0), (1000, 30.0)]
)
def test_the_deadline_grows_with_the_attempts(attempts: int, deadline: float) -> None:
    assert UNTIL_IT_WORKS.deadline_after(attempts) == deadline


async def test_heartbeats_do_not_shorten_the_backoff_of_errors(
    open_plane: OpenControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "HEARTBEAT_SECONDS", (0.3, 0.3))
    monkeypatch.setattr(control_plane_client, "_BACKOFF", Backoff(first=60, longest=60))
    async with open_plane() as plane, plane.piped.api() as api:
        api._chance = lambda: 0.5
        plane.gate.refusals["GetDeployment"] = grpc.StatusCode.INTERNAL
        waiting = asyncio.create_task(api.get_deployment(deployment_request()))
        await eventually(lambda: plane.gate.count("GetDeployment") == 1)
        async with aclosing(api.watch_wakeups()) as stream:
            kinds = [(await anext(stream)).kind for _ in range(4)]
        assert kinds == [Wakeup.CONNECTED, *[Wakeup.HEARTBEAT] * 3]
        # The stream itself was a call that succeeded; each heartbeat would be another one.
        assert plane.gate.count("GetDeployment") <= 2
        waiting.cancel()
