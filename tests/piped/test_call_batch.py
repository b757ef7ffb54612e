# SPDX-License-Identifier: Apache-2.0
"""Calls of a busy piped share requests, and each ends as it would on its own."""

import asyncio
from collections.abc import Awaitable

import grpc
import pytest

from pipecd.model.errors import Denied, NotFound, PipecdError, UserMistake
from pipecd.piped import call_batch
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.batch_pb2 import BatchedCall, CallBatchRequest, CallBatchResponse
from pipecd.wire.channel import PIPED_SERVICE, extension_rpc
from servers.control_plane import OpenControlPlane
from servers.polling import eventually

UNKNOWN_ID = "00000000-0000-4000-8000-000000000009"


def get_deployment(id: str = UNKNOWN_ID) -> pb.GetDeploymentRequest:
    return pb.GetDeploymentRequest(id=id)


async def outcome(call: Awaitable[object]) -> object:
    try:
        return await call
    except PipecdError as e:
        return type(e)


async def test_calls_at_the_same_time_share_a_request(open_plane: OpenControlPlane) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        plane.gate.opens_batches = False
        meta = pb.ReportPipedMetaRequest(version="v1")
        calls = [
            outcome(api.report_piped_meta(meta)),
            *(outcome(api.get_deployment(get_deployment())) for _ in range(20)),
            outcome(api.get_deployment(get_deployment(""))),
            *(outcome(api.report_piped_meta(meta)) for _ in range(20)),
        ]
        results = await asyncio.gather(*calls)
        metas = [results[0], *results[-20:]]
        assert all(isinstance(result, pb.ReportPipedMetaResponse) for result in metas)
        assert results[1:-21] == [NotFound] * 20
        assert results[-21] is UserMistake
        assert plane.gate.calls == ["ReportPipedMeta", "CallBatch"]


async def test_a_call_that_takes_long_holds_up_others_for_a_moment_only(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        plane.gate.held_answers.add("ReportPipedMeta")
        held = asyncio.create_task(
            outcome(api.report_piped_meta(pb.ReportPipedMetaRequest(version="v1")))
        )
        await eventually(lambda: plane.gate.count("ReportPipedMeta done"))
        async with asyncio.timeout(5):
            assert await outcome(api.get_deployment(get_deployment())) is NotFound
        held.cancel()


async def test_reports_do_not_wait_for_logs(open_plane: OpenControlPlane) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        plane.gate.opens_batches = False
        log = pb.ReportStageLogsRequest(deployment_id=UNKNOWN_ID, stage_id="s")
        calls = [api.report_stage_logs(log) for _ in range(3)]
        calls += [api.get_deployment(get_deployment()) for _ in range(3)]
        results = await asyncio.gather(*(outcome(call) for call in calls))
        assert results == [NotFound] * 6
        assert sorted(plane.gate.calls) == [
            *("CallBatch", "CallBatch"),
            *("GetDeployment", "ReportStageLogs"),
        ]


async def test_a_piped_with_little_to_do_makes_calls_of_their_own(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        for _ in range(10):
            await outcome(api.get_deployment(get_deployment()))
        assert plane.gate.count("GetDeployment") == 10
        assert plane.gate.count("CallBatch") == 0


async def test_a_control_plane_without_batches_gets_single_calls(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        plane.gate.refusals["CallBatch"] = grpc.StatusCode.UNIMPLEMENTED
        for _ in range(2):
            calls = (outcome(api.get_deployment(get_deployment())) for _ in range(20))
            assert await asyncio.gather(*calls) == [NotFound] * 20
        assert plane.gate.count("GetDeployment") == 40
        assert plane.gate.count("CallBatch") <= call_batch.MAX_UNDER_WAY


async def test_a_batch_that_fails_is_retried_by_each_of_its_calls(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        api._chance = lambda: 0.00001
        plane.gate.refusals["CallBatch"] = grpc.StatusCode.UNAVAILABLE
        calls = [
            asyncio.create_task(outcome(api.get_deployment(get_deployment()))) for _ in range(20)
        ]
        await eventually(lambda: plane.gate.count("CallBatch"))
        del plane.gate.refusals["CallBatch"]
        assert await asyncio.gather(*calls) == [NotFound] * 20


async def test_a_cancelled_call_does_not_hold_up_the_others(open_plane: OpenControlPlane) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        calls = [
            asyncio.create_task(outcome(api.get_deployment(get_deployment()))) for _ in range(20)
        ]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        async with asyncio.timeout(10):
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[1::2] == [NotFound] * 10


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        pytest.param([BatchedCall(rpc="CallBatch")], "INVALID_ARGUMENT", id="a batch in a batch"),
        pytest.param([BatchedCall(rpc="ReportStat")] * 1001, "INVALID_ARGUMENT", id="too many"),
        pytest.param([BatchedCall()], "INVALID_ARGUMENT", id="no name"),
    ],
)
async def test_a_batch_that_is_refused(
    open_plane: OpenControlPlane, calls: list[BatchedCall], code: str
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        plane.gate.opens_batches = False
        call = extension_rpc(api._channel, PIPED_SERVICE, "CallBatch", CallBatchResponse)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(CallBatchRequest(calls=calls))
        assert refused.value.code().name == code


@pytest.mark.parametrize(
    ("call", "code"),
    [
        pytest.param(BatchedCall(rpc="WatchWakeups"), "UNIMPLEMENTED", id="a stream"),
        pytest.param(BatchedCall(rpc="Nothing"), "UNIMPLEMENTED", id="an unknown method"),
        pytest.param(
            BatchedCall(rpc="GetDeployment", request=b"\xff\xff"), "INVALID_ARGUMENT", id="garbage"
        ),
    ],
)
async def test_a_call_that_is_refused_within_a_batch(
    open_plane: OpenControlPlane, call: BatchedCall, code: str
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        send = extension_rpc(api._channel, PIPED_SERVICE, "CallBatch", CallBatchResponse)
        plane.gate.opens_batches = False
        stat = BatchedCall(
            rpc="ReportPipedMeta",
            request=pb.ReportPipedMetaRequest(version="v1").SerializeToString(),
        )
        refused, accepted = (await send(CallBatchRequest(calls=[call, stat]))).results
        codes = {each.value[0]: each.name for each in grpc.StatusCode}
        assert codes[refused.code] == code
        assert accepted.code == 0


async def test_a_batch_gives_no_access_to_what_is_of_another_piped(
    open_plane: OpenControlPlane,
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        other = await plane.register_piped(name="other")
        await other.add_repository("site", "https://git.example/site")
        foreign = await other.add_application("apps/web")
        report = pb.ReportApplicationDeployingStatusRequest(application_id=foreign, deploying=True)
        calls = [outcome(api.report_application_deploying_status(report)) for _ in range(8)]
        plane.gate.opens_batches = False
        assert await asyncio.gather(*calls) == [Denied] * 8
        assert plane.gate.count("CallBatch") >= 1
