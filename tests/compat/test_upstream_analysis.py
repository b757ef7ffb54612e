# SPDX-License-Identifier: Apache-2.0
"""Our analysis and upstream's plugin return the same results for the same measurements."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc
import pytest

from pipecd.model.deployment import StageStatus
from pipecd.model.errors import NotFound
from pipecd.plugins.analysis.plugin import AnalysisPlugin
from pipecd.proto.model.deployment_pb2 import PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin import host_pb2
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub
from pipecd.proto.plugin.source_pb2 import DeploymentSource
from pipecd.sdk import PluginEntry
from pipecd.sdk.serving import rpc_handlers
from pipecd.sdk.testing import MemoryHost, StageBench
from pipecd.wire.server import grpc_server
from servers.server import free_port
from servers.web import Answer, Request, WebServer, in_json

PLUGIN_SERVICE = host_pb2.DESCRIPTOR.services_by_name["PluginService"]
CASES = 24


class Numbers(WebServer):
    """A Prometheus that answers a query of numbers with them."""

    def answer(self, request: Request) -> Answer:
        values = parse_qs(request.body.decode())["query"][0].removeprefix("q").split()
        points = [[1_700_000_000 + 60 * i, value] for i, value in enumerate(values)]
        result = [{"metric": {}, "values": points}] if points else []
        return in_json({"status": "success", "data": {"resultType": "matrix", "result": result}})


@pytest.fixture
def prometheus_of_numbers() -> Iterator[str]:
    with closing(Numbers()) as server:
        yield server.address


def query(values: dict[str, list[float]]) -> str:
    """Numbers by variant; the letter keeps a query of none from being empty."""
    parts = (
        f'{{{{ if eq .Variant.Name "{variant}" }}}}{" ".join(map(str, numbers))}{{{{ end }}}}'
        for variant, numbers in values.items()
    )
    return "q" + "".join(parts)


def comparisons() -> Iterator[dict[str, Any]]:
    """Samples of all sizes, with and without ties, near the edge of significance."""
    chance = random.Random(7)
    for number in range(CASES):
        sizes = chance.randint(1, 60), chance.randint(1, 60)
        if number % 2:
            canary = [float(chance.randint(0, 6)) for _ in range(sizes[0])]
            other = [float(chance.randint(0, 6 + number % 4)) for _ in range(sizes[1])]
        else:
            canary = [round(chance.gauss(0, 1), 6) for _ in range(sizes[0])]
            other = [round(chance.gauss(chance.choice([0, 0.5]), 1), 6) for _ in range(sizes[1])]
        strategy, control = chance.choice(
            [("CANARY_BASELINE", "baseline"), ("CANARY_PRIMARY", "primary")]
        )
        yield {
            "strategy": strategy,
            "deviation": ("EITHER", "HIGH", "LOW")[number % 3],
            "query": query({"canary": canary, control: other}),
        }


EDGES: list[dict[str, Any]] = [
    {"query": "q 1 2 3", "expected": {"max": 3}},
    {"query": "q 1 2 3", "expected": {"max": 2.99}},
    {"query": "q 1 2 3", "expected": {"min": 1}},
    {"query": "q 1 2 3", "expected": {"min": 1.01, "max": 9}},
    {"query": "q", "expected": {"max": 1}},
    {"query": "q NaN", "expected": {"max": 1}},
    {"query": "q NaN", "expected": {"max": 1}, "skipOnNoData": True},
    {"query": "q +Inf", "expected": {"max": 1}},
    {"query": "q 9", "expected": {"max": 1}, "failureLimit": 1},
    {"query": "q {{ .App.Name }}", "expected": {"max": 1}},
    {"strategy": "CANARY_PRIMARY", "query": query({"canary": [], "primary": []})},
    {"strategy": "CANARY_PRIMARY", "query": query({"canary": [1], "primary": []})},
    {"strategy": "CANARY_PRIMARY", "query": query({"canary": [], "primary": [1]})},
    {"strategy": "CANARY_BASELINE", "query": query({"canary": [2, 2], "baseline": [2]})},
    {"strategy": "PREVIOUS", "query": "q 1"},
    {"strategy": "GUESS", "query": "q 1"},
]


class Forgetful(MemoryHost):
    """A piped for many stages at once, none of which ran before."""

    async def GetStageMetadata(self, request: Any) -> host_pb2.GetStageMetadataResponse:
        return host_pb2.GetStageMetadataResponse(found=False)

    async def GetApplicationSharedObject(self, request: Any) -> Any:
        raise NotFound("nothing is kept")

    async def ReportStageLogsFromLastCheckpoint(self, request: Any) -> Any:
        return host_pb2.ReportStageLogsFromLastCheckpointResponse()


@asynccontextmanager
async def upstreams(program: Path, entry: PluginEntry) -> AsyncGenerator[Any, None]:
    """Upstream's plugin as a process, with a piped in memory."""
    port = free_port()
    config = {"name": entry.name, "url": "file:///x", "port": port, "config": entry.config}
    handlers = rpc_handlers(PLUGIN_SERVICE, Forgetful())
    async with grpc_server([handlers], host="localhost", port=0, grace=0) as service:
        process = await asyncio.create_subprocess_exec(
            program, "start", f"--piped-plugin-service=localhost:{service}",
            f"--config={json.dumps(config)}",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
                await channel.channel_ready()
                yield DeploymentServiceStub(channel)
        finally:
            process.kill()
            await process.wait()


def stage_request(bench: StageBench, number: int, options: dict[str, Any]) -> Any:
    source = DeploymentSource(
        application_directory=str(bench.directory),
        commit_hash="c0ffee",
        application_config=bench.config.encode(),
        application_config_filename="app.pipecd.yaml",
        shared_config_directory=str(bench.directory / ".pipe"),
    )
    stage = PipelineStage(id=f"stage-{number}", name="ANALYSIS", created_at=1, updated_at=1)
    return pb.ExecuteStageRequest(
        input=pb.ExecutePluginInput(
            deployment=bench.deployment(),
            stage=stage,
            stage_config=json.dumps(options).encode(),
            target_deployment_source=source,
        )
    )


@pytest.mark.timeout(120)
async def test_verdicts_are_the_same(
    upstream: Path, prometheus_of_numbers: str, tmp_path: Path
) -> None:
    program = upstream / "plugins" / "analysis"
    if not program.exists():
        pytest.skip("upstream's plugin for analysis is not there")
    (tmp_path / ".pipe").mkdir()
    address = {"address": prometheus_of_numbers}
    provider = {"name": "p", "type": "PROMETHEUS", "config": address}
    entry = PluginEntry("analysis", {"analysisProviders": [provider]})
    cases = [*EDGES, *comparisons()]
    few = asyncio.Semaphore(8)
    async with upstreams(program, entry) as theirs, asyncio.timeout(100):

        async def verdicts(number: int, check: dict[str, Any]) -> tuple[str, str]:
            # Upstream's timers race at the end of the analysis, so one query comes well before it.
            whole = {"provider": "p", "interval": "3s", **check}
            options = {"duration": "5s", "metrics": [whole]}
            bench = StageBench(AnalysisPlugin(), tmp_path, entry)
            async with few:
                ours, other = await asyncio.gather(
                    bench.run("ANALYSIS", options),
                    theirs.ExecuteStage(stage_request(bench, number, options)),
                )
            return ours.status.name, StageStatus(other.status).name

        found = await asyncio.gather(*(verdicts(*case) for case in enumerate(cases)))
    differing = [(c, *pair) for c, pair in zip(cases, found, strict=True) if len({*pair}) > 1]
    assert differing == []
    assert {ours for ours, _ in found} == {"SUCCESS", "FAILURE"}
