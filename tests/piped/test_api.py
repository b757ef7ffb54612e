# SPDX-License-Identifier: Apache-2.0
"""Calls fail as our errors; reports outlast an absent server, hopeless ones do not."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pipecd.model.errors import Denied, NotFound, Unauthenticated, Unavailable, UserMistake
from pipecd.piped.api import PipedApi
from pipecd.proto.service import piped_pb2 as pb
from pipecd.wire import channel
from pipecd.wire.server import grpc_server

HURRY = 0.00001


@asynccontextmanager
async def hurried(plane: Any) -> AsyncGenerator[PipedApi]:
    async with plane.api() as api:
        api._chance = lambda: HURRY
        yield api


def state_report() -> pb.ReportApplicationDeployingStatusRequest:
    return pb.ReportApplicationDeployingStatusRequest(application_id="x", deploying=True)


async def test_errors_are_ours_and_hopeless_calls_are_made_once(open_plane: Any) -> None:
    async with open_plane() as plane, hurried(plane) as api:
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


async def test_a_wrong_key_is_told(open_plane: Any) -> None:
    async with (
        open_plane() as plane,
        PipedApi.connect(
            plane.address,
            project="shop",
            piped=plane.registered.id,
            key=lambda: "wrong",
            insecure=True,
        ) as api,
    ):
        with pytest.raises(Unauthenticated, match="put the new key into pipedKeyFile"):
            await api.list_applications(pb.ListApplicationsRequest())
        with pytest.raises(Unauthenticated):
            await api.report_piped_meta(pb.ReportPipedMetaRequest(config="{}"))


async def test_a_disabled_piped_waits_and_goes_on_when_it_is_enabled(
    open_plane: Any, eventually: Any
) -> None:
    async with open_plane() as plane, hurried(plane) as api:
        api._admission._chance = lambda: HURRY
        listing = pb.ListApplicationsRequest()
        await api.list_applications(listing)
        await plane.cases.pipeds.disable(plane.registered.id, by=plane.admin)
        with pytest.raises(Unauthenticated, match="enable it"):
            await api.list_applications(listing)
        # Nobody bothers the control plane while it is too early to ask again.
        before = plane.gate.count("ListApplications")
        for _ in range(20):
            with pytest.raises(Unauthenticated):
                await api.list_applications(listing)
        assert plane.gate.count("ListApplications") == before
        report = asyncio.create_task(api.report_stat(pb.ReportStatRequest()))
        patient = asyncio.create_task(api.report_piped_meta(pb.ReportPipedMetaRequest(config="{}")))
        with pytest.raises(Unauthenticated):
            await report
        await plane.cases.pipeds.enable(plane.registered.id, by=plane.admin)
        await eventually(patient.done)
        await patient
        await api.list_applications(listing)


async def test_a_piped_whose_key_is_replaced_takes_the_new_one_from_its_file(
    open_plane: Any,
) -> None:
    async with open_plane() as plane:
        key = [plane.registered.key]
        async with PipedApi.connect(
            plane.address,
            project="shop",
            piped=plane.registered.id,
            key=lambda: key[0],
            insecure=True,
        ) as api:
            api._chance = lambda: HURRY
            await api.list_applications(pb.ListApplicationsRequest())
            fresh = await plane.cases.pipeds.add_key(plane.registered.id, by=plane.admin)
            await plane.cases.pipeds.drop_old_keys(plane.registered.id, by=plane.admin)
            key[0] = fresh
            await api.report_piped_meta(pb.ReportPipedMetaRequest(config="{}"))
            await api.list_applications(pb.ListApplicationsRequest())


async def test_nobody_there_is_told_without_the_key() -> None:
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(30):
            async with _short_connect("127.0.0.1:1"):
                pass
    assert "s3cret" not in str(caught.value)


def _short_connect(address: str) -> Any:
    from pipecd.wire.channel import open_channel
    from pipecd.wire.credentials import piped_token

    token = piped_token("p", "i", "s3cret")
    return open_channel(address, authorization=token, insecure=True, connect_within=0.05)


async def test_a_control_plane_that_is_away_at_the_start_is_told_of_and_waited_for(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(channel, "_TELL_AFTER", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    address = f"127.0.0.1:{port}"
    connecting = PipedApi.connect(
        address, project="shop", piped="p", key=lambda: "s3cret", insecure=True
    )
    with capture_logs() as logs:
        entering = asyncio.create_task(connecting.__aenter__())
        await eventually(lambda: logs)
        (told,) = logs
        assert (told["event"], told["address"]) == ("server cannot be reached, trying on", address)
        assert "Connection refused" in told["error"]
        assert "whether it speaks TLS" in told["error"]
        assert "s3cret" not in str(told)
        assert not entering.done()
        async with grpc_server([], host="127.0.0.1", port=port, grace=0):
            await entering
            await connecting.__aexit__(None, None, None)
    assert [entry["event"] for entry in logs[1:]] == ["server reached"]


async def test_a_report_waits_for_the_server_to_come_back(open_plane: Any, eventually: Any) -> None:
    async with open_plane() as plane, hurried(plane) as api:
        plane.gate.refusals["ReportStat"] = grpc.StatusCode.UNAVAILABLE
        plane.gate.refusals["SaveStageMetadata"] = grpc.StatusCode.UNAVAILABLE
        report = asyncio.create_task(
            api.save_stage_metadata(pb.SaveStageMetadataRequest(deployment_id="d", stage_id="s"))
        )
        await eventually(lambda: plane.gate.count("SaveStageMetadata") > 12)
        del plane.gate.refusals["SaveStageMetadata"]
        with pytest.raises(NotFound):
            await report


async def test_a_report_ends_with_its_caller(open_plane: Any, eventually: Any) -> None:
    async with open_plane() as plane, hurried(plane) as api:
        plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
        report = asyncio.create_task(api.report_application_deploying_status(state_report()))
        await eventually(lambda: plane.gate.calls)
        report.cancel()
        with pytest.raises(asyncio.CancelledError):
            await report


async def test_a_server_with_a_fault_is_asked_ten_times(open_plane: Any) -> None:
    async with open_plane() as plane, hurried(plane) as api:
        plane.gate.refusals["*"] = grpc.StatusCode.INTERNAL
        with pytest.raises(Unavailable):
            await api.report_application_deploying_status(state_report())
        assert plane.gate.count("ReportApplicationDeployingStatus") == 10


async def test_questions_are_repeated_a_few_times_and_lists_are_not(open_plane: Any) -> None:
    async with open_plane() as plane, hurried(plane) as api:
        plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
        with pytest.raises(Unavailable):
            await api.get_deployment(pb.GetDeploymentRequest(id="x"))
        with pytest.raises(Unavailable):
            await api.list_applications(pb.ListApplicationsRequest())
        assert plane.gate.count("GetDeployment") == 3
        assert plane.gate.count("ListApplications") == 1


async def test_an_answer_to_one_call_wakes_those_that_wait(
    open_plane: Any, eventually: Any
) -> None:
    async with open_plane() as plane, hurried(plane) as api:
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
