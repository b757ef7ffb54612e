# SPDX-License-Identifier: Apache-2.0
"""A piped that replaces a running one with its id is counted."""

from typing import Any

import grpc.aio
from prometheus_client import generate_latest

from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.observe.metrics import ServerMetrics
from pipecd.proto.service import lease_pb2 as pb
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import piped_token
from pipecd.wire.server import grpc_server

SERVICE = "grpc.service.pipedservice.PipedService"


async def acquire(
    channel: grpc.aio.Channel, *, host: str, force: bool = False
) -> pb.AcquirePipedLeaseResponse:
    """Requests the lease for the first time, then with the ticket of the response."""
    call: Any = channel.unary_unary(
        f"/{SERVICE}/AcquirePipedLease",
        request_serializer=pb.AcquirePipedLeaseRequest.SerializeToString,
        response_deserializer=pb.AcquirePipedLeaseResponse.FromString,
    )
    ticket = (await call(pb.AcquirePipedLeaseRequest(host=host))).ticket
    return await call(pb.AcquirePipedLeaseRequest(host=host, ticket=ticket, force=force))


async def test_takeovers_are_counted_and_restarts_are_not(
    cases: UseCases, registered: RegisteredPiped
) -> None:
    metrics = ServerMetrics.new()
    table = piped_table(cases, on_takeover=metrics.piped_taken_over)

    def takeovers() -> list[str]:
        lines = generate_latest(metrics.registry).decode().splitlines()
        return [line for line in lines if line.startswith("pipecd_piped_takeovers_total{")]

    token = piped_token("shop", registered.id, registered.key)
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        open_channel(f"127.0.0.1:{port}", authorization=token, insecure=True) as channel,
    ):
        first = await acquire(channel, host="a")
        async with cases.piped_leases.stream(PipedCaller("shop", registered.id, first.epoch)):
            pass
        second = await acquire(channel, host="a")
        assert takeovers() == []
        async with cases.piped_leases.stream(PipedCaller("shop", registered.id, second.epoch)):
            assert (await acquire(channel, host="b", force=True)).granted
    assert takeovers() == [
        'pipecd_piped_takeovers_total{pipecd_component="server",project="shop"} 1.0'
    ]
