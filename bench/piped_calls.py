# SPDX-License-Identifier: Apache-2.0
"""Authenticated calls per second of a control plane, in the mix of a piped that deploys."""

import argparse
import itertools
import os
import select
import statistics
import time
from collections.abc import Iterator

from pipecd.proto.model.deployment_pb2 import StageStatus
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.ordering_pb2 import ListDeploymentsInOrderRequest
from rig.baseline import baseline_server
from rig.control_plane import ControlPlaneProcess, run_control_plane
from rig.engines import NotInstalled, engine
from rig.grpc_client import GrpcClient, Request, request
from rig.seed import RegisteredPiped, seed_pipeds

CONNECTIONS = 16
TARGET_RATE, TARGET_P99, UPSTREAM_RATE = 1500, 50, 22
SERVICE = "/grpc.service.pipedservice.PipedService"


def mix(piped: RegisteredPiped) -> Iterator[Request]:
    """Yields the calls of a piped with a running deployment, endlessly."""
    deployment, stage = piped.deployment.id, piped.deployment.stages[0].id
    # Log block indexes are unique, also when the same piped is driven again.
    for index in itertools.count(time.time_ns()):
        status = pb.ReportStageStatusChangedRequest(
            deployment_id=deployment,
            stage_id=stage,
            status=StageStatus.STAGE_RUNNING,
            status_reason=f"step {index}",
            completed_at=1,
        )
        block = LogBlock(index=index, log="a line of a log", created_at=1)
        logs = pb.ReportStageLogsRequest(deployment_id=deployment, stage_id=stage, blocks=[block])
        for name, message in (
            ("ListUnhandledCommands", pb.ListUnhandledCommandsRequest()),
            ("ListDeploymentsInOrder", ListDeploymentsInOrderRequest()),
            ("ReportStageStatusChanged", status),
            ("ReportStageLogs", logs),
        ):
            yield request(f"{SERVICE}/{name}", message.SerializeToString(), piped.token)


def drive(address: str, pipeds: list[RegisteredPiped], seconds: float) -> list[float]:
    """Returns the latency of each call; every piped has one connection with one call at a time."""
    clients = [(GrpcClient(address), mix(piped)) for piped in pipeds]
    taken: list[float] = []
    began: dict[int, float] = {}
    waiting = select.epoll()
    for client, calls in clients:
        client.call(next(calls))
        waiting.register(client.fileno(), select.EPOLLIN)
    by_number = {client.fileno(): (client, calls) for client, calls in clients}
    for number, (client, calls) in by_number.items():
        began[number] = time.perf_counter()
        client.send(next(calls))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for number, _ in waiting.poll():
            client, calls = by_number[number]
            if client.receive():
                taken.append(time.perf_counter() - began[number])
                call = next(calls)
                began[number] = time.perf_counter()
                client.send(call)
    for client, _ in clients:
        client.close()
    return taken


def baseline_rate(pipeds: list[RegisteredPiped]) -> float:
    """Returns the calls per second of a gRPC server that does nothing, on this machine."""
    with baseline_server() as address:
        drive(address, pipeds, 0.5)
        began = time.perf_counter()
        return len(drive(address, pipeds, 2.0)) / (time.perf_counter() - began)


def measure(server: ControlPlaneProcess, pipeds: list[RegisteredPiped], seconds: float) -> None:
    drive(server.address("piped-api"), pipeds, 1.0)
    baseline = baseline_rate(pipeds)
    server_cpu, client_cpu, began = server.cpu_seconds(), time.process_time(), time.perf_counter()
    taken = sorted(drive(server.address("piped-api"), pipeds, seconds))
    elapsed = time.perf_counter() - began
    server_cpu = server.cpu_seconds() - server_cpu
    client_cpu = time.process_time() - client_cpu
    rate, p99 = len(taken) / elapsed, taken[int(0.99 * len(taken))] * 1000
    print(
        f"calls per second     {rate:8.0f}      (target: {TARGET_RATE}, "
        f"{rate / TARGET_RATE:.2f} times that; upstream: {UPSTREAM_RATE})"
    )
    # Measured before and after, because the speed of a shared machine varies.
    baseline = (baseline + baseline_rate(pipeds)) / 2
    ratio = rate / baseline
    print(f"of a bare server     {ratio:8.2f}      (gRPC that does nothing: {baseline:.0f})")
    print(f"latency p50          {statistics.median(taken) * 1000:8.1f} ms")
    print(f"latency p99          {p99:8.1f} ms   (target: {TARGET_P99})")
    print(
        f"CPU time per call    {server_cpu / len(taken) * 1e6:8.0f} µs   of the server, "
        f"{client_cpu / len(taken) * 1e6:.0f} µs of the client; "
        f"server used {server_cpu / elapsed:.2f} cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--engines", default="sqlite,postgres")
    options = parser.parse_args()
    for name in options.engines.split(","):
        print(f"-- {name}, {CONNECTIONS} connections, {os.cpu_count()} processors", flush=True)
        try:
            with engine(name) as datastore:
                pipeds = seed_pipeds(datastore, pipeds=CONNECTIONS)
                with run_control_plane(datastore) as server:
                    measure(server, pipeds, options.seconds)
        except NotInstalled as e:
            print(e)


if __name__ == "__main__":
    main()
