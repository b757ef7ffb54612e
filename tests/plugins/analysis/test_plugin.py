# SPDX-License-Identifier: Apache-2.0
"""ANALYSIS measures for a while, and what it finds decides."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.analysis.plugin import PLUGIN, AnalysisPlugin
from pipecd.sdk import (
    PluginEntry,
    StageCommandKind,
    StageResult,
    StageStatus,
    Unavailable,
    UserMistake,
)
from pipecd.sdk.testing import MemoryHost, StageBench

OpenWeb = Callable[..., AbstractAsyncContextManager[Any]]

SUCCESS, FAILURE, SKIPPED = StageStatus.SUCCESS, StageStatus.FAILURE, StageStatus.SKIPPED


class Metrics:
    """A Prometheus by its answers: the values of each query, and when they were asked for."""

    def __init__(self, **values: float) -> None:
        self.values: dict[str, list[float]] = {query: [value] for query, value in values.items()}
        self.windows: list[tuple[str, float, float]] = []

    def __call__(self, asked: Any) -> tuple[int, Any]:
        form = asked.form
        query = form["query"]
        self.windows.append((query, float(form["start"]), float(form["end"])))
        if query not in self.values:
            return 400, {"status": "error", "error": f"no such query: {query}"}
        points = [[at, str(value)] for at, value in enumerate(self.values[query])]
        result = [{"values": points}] if points else []
        return 200, {"status": "success", "data": {"result": result}}


def metric(**changes: Any) -> dict[str, Any]:
    return {
        "provider": "prom", "query": "errors", "interval": "20ms", "expected": {"max": 1}, **changes
    }  # fmt: skip


async def run(bench: StageBench, duration: str, *metrics: Any, **more: Any) -> StageResult:
    async with asyncio.timeout(10):
        return await bench.run("ANALYSIS", {"duration": duration, "metrics": metrics, **more})


async def test_what_is_as_expected_to_the_end_succeeds(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    async with web(answers := Metrics(errors=0.5)) as server:
        tested, begun = bench(server.url), time.time()
        result = await run(tested, "100ms", metric())
    assert (result.status, result.message) == (SUCCESS, "The analysis found nothing unexpected")
    assert time.time() - begun >= 0.1
    assert 2 <= len(answers.windows) <= 5, "first after one interval, last at the end"
    query, start, end = answers.windows[0]
    assert query == "errors"
    assert end - start == pytest.approx(0.02, abs=0.002)
    assert end >= begun + 0.019
    assert tested.host.lines[:4] == [
        "Analysing for 100ms",
        "[metrics-0] every 20ms, 0 failures allowed",
        "[metrics-0] THRESHOLD of prom",
        "[metrics-0] primary: errors",
    ]
    assert tested.host.lines[4] == "[metrics-0] fine: 1 point, 0.5, is at most 1"
    kept = json.loads(tested.host.objects["latest-analysis-result"])
    assert begun - 1 < kept["start_time"] <= end


async def test_failures_beyond_the_limit_fail_at_once(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    async with web(Metrics(errors=7)) as server:
        tested = bench(server.url)
        result = await run(tested, "1h", metric(failureLimit=2), metric(interval="30m"))
    assert result.status is FAILURE
    assert result.message == (
        "metrics-0 failed 3 times, 2 allowed; the last time: 7 at 00:00:00 is above 1"
    )
    told = [line for line in tested.host.lines if "failure " in line]
    assert told == [
        f"[metrics-0] failure {n}, 2 allowed: 7 at 00:00:00 is above 1" for n in (1, 2, 3)
    ]
    assert "latest-analysis-result" not in tested.host.objects


async def test_failures_within_the_limit_do_not_matter(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    async with web(Metrics(errors=7)) as server:
        result = await run(bench(server.url), "50ms", metric(failureLimit=2))
    assert result.status is SUCCESS


async def test_an_interval_as_long_as_the_analysis_is_looked_at_once(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    async with web(answers := Metrics(errors=0)) as server:
        assert (await run(bench(server.url), "30ms", metric(interval="30ms"))).status is SUCCESS
    assert len(answers.windows) == 1


async def test_a_longer_interval_is_never_looked_at(bench: Callable[..., StageBench]) -> None:
    tested = bench()
    assert (await run(tested, "20ms", metric(interval="1m"))).status is SUCCESS
    assert "[metrics-0] will not run: its interval is longer than the analysis" in tested.host.lines


TROUBLE = [
    pytest.param(metric(query="nonsense"), "status 400: no such query: nonsense", id="a query that is refused"),
    pytest.param(metric(query="silent", timeout="10ms"), "no response within 10ms", id="a server that does not answer"),
    pytest.param(metric(query="nan"), "no data: a value is not a number", id="no data"),
]  # fmt: skip


def troubled(asked: Any) -> tuple[int, Any]:
    match asked.form["query"]:
        case "silent":
            return 200, None
        case "nan":
            return 200, {"status": "success", "data": {"result": [{"values": [[0, "NaN"]]}]}}
        case query:
            return 400, {"status": "error", "error": f"no such query: {query}"}


@pytest.mark.parametrize(("check", "told"), TROUBLE)
async def test_trouble_counts_as_a_failure(
    web: OpenWeb, bench: Callable[..., StageBench], check: dict[str, Any], told: str
) -> None:
    async with web(troubled) as server:
        result = await run(bench(server.url), "1h", check)
    assert result.status is FAILURE
    assert told in result.message


async def test_no_data_need_not_count(web: OpenWeb, bench: Callable[..., StageBench]) -> None:
    async with web(troubled) as server:
        tested = bench(server.url)
        check = metric(query="nan", skipOnNoData=True)
        assert (await run(tested, "50ms", check)).status is SUCCESS
    assert "[metrics-0] fine: no data: a value is not a number" in tested.host.lines


CANARIES = [
    pytest.param("CANARY_BASELINE", "EITHER", FAILURE, id="a canary that differs from the baseline"),
    pytest.param("CANARY_BASELINE", "LOW", SUCCESS, id="a canary above the baseline is not too low"),
    pytest.param("CANARY_BASELINE", "HIGH", FAILURE, id="but too high"),
    pytest.param("CANARY_PRIMARY", "EITHER", SUCCESS, id="a canary like the primary"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "deviation", "status"), CANARIES)
async def test_variants_are_compared(
    web: OpenWeb, bench: Callable[..., StageBench], strategy: str, deviation: str, status: Any
) -> None:
    answers = Metrics()
    answers.values = {
        "tested/canary/c": [8, 9, 10, 11, 12],
        "tested/baseline/b": [1, 2, 3, 4, 5],
        "tested/primary/p": [7, 8, 10, 12, 13],
    }
    query = "{{ .App.Name }}/{{ .Variant.Name }}/{{ .VariantCustomArgs.x }}"
    args = {"canaryArgs": {"x": "c"}, "baselineArgs": {"x": "b"}, "primaryArgs": {"x": "p"}}
    async with web(answers) as server:
        check = metric(query=query, strategy=strategy, deviation=deviation, **args)
        result = await run(bench(server.url), "30ms", check)
    assert result.status is status
    assert len({(start, end) for _, start, end in answers.windows[:2]}) == 1, "of the same time"


async def test_a_deployment_is_compared_with_the_previous_one(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    check = metric(strategy="PREVIOUS", deviation="HIGH")
    clock = [1_700_000_000.0]
    async with web(answers := Metrics(errors=1)) as server:
        tested = bench(server.url, plugin=AnalysisPlugin(now=lambda: clock[0]))
        assert (await run(tested, "20ms", check)).status is SUCCESS
        told = "[metrics-0] fine: there is no earlier analysis to compare with"
        assert told in tested.host.lines
        assert answers.windows == []
        assert tested.host.objects == {"latest-analysis-result": b'{"start_time": 1700000000}'}
        clock[0] += 3600
        tested.host.stage_metadata.clear()  # of another deployment
        assert (await run(tested, "20ms", check)).status is SUCCESS
    (_, start, end), (_, start_then, end_then) = answers.windows
    assert end == 1_700_003_600
    assert end - start == pytest.approx(0.02, abs=0.001)
    assert end_then == pytest.approx(1_700_000_000.02, abs=0.5), "one interval after its start"
    assert end_then - start_then == pytest.approx(0.02, abs=0.001)
    assert tested.host.objects == {"latest-analysis-result": b'{"start_time": 1700003600}'}


async def test_what_was_kept_and_cannot_be_read_is_no_previous_one(
    bench: Callable[..., StageBench],
) -> None:
    tested = bench()
    tested.host.objects["latest-analysis-result"] = b"nonsense"
    assert (await run(tested, "20ms", metric(strategy="PREVIOUS"))).status is SUCCESS


class Careless(MemoryHost):
    """A piped that can keep nothing."""

    async def PutStageMetadataMulti(self, request: Any) -> Any:
        raise UserMistake("no room")

    async def PutApplicationSharedObject(self, request: Any) -> Any:
        raise Unavailable("nobody is there")


async def test_what_cannot_be_kept_changes_no_verdict(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    async with web(Metrics(errors=0)) as server:
        tested = bench(server.url, host=Careless())
        assert (await run(tested, "40ms", metric())).status is SUCCESS
    told = "The next analysis cannot be compared with this one: nobody is there"
    assert told in tested.host.lines


async def test_a_person_may_skip_the_rest(web: OpenWeb, bench: Callable[..., StageBench]) -> None:
    async with web(Metrics(errors=0)) as server:
        tested = bench(server.url)
        running = asyncio.ensure_future(run(tested, "1h", metric()))
        await tested.host.until(lambda: any("fine" in line for line in tested.host.lines))
        tested.host.tell(StageCommandKind.APPROVE, "eve")
        tested.host.tell(StageCommandKind.SKIP, "ann")
        result = await running
    assert (result.status, result.message) == (SKIPPED, "Skipped by ann")
    assert tested.host.stage_metadata["pipecd/stage-display-metadata"] == "SkippedBy: ann"
    assert "latest-analysis-result" not in tested.host.objects


async def test_a_restart_goes_on_from_where_it_was(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    async with web(answers := Metrics(errors=7)) as server:
        tested = bench(server.url)
        running = asyncio.ensure_future(run(tested, "1h", metric(failureLimit=1000)))
        await tested.host.until(lambda: "failures" in tested.host.stage_metadata)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        seen = len(answers.windows)
        kept = dict(tested.host.stage_metadata)
        assert kept["elapsedTime"].endswith("ms")
        assert json.loads(kept["failures"]) == {"metrics-0": pytest.approx(seen, abs=1)}
        tested.host.stage_metadata["elapsedTime"] = "59m59.9s"
        result = await run(tested, "1h", metric(failureLimit=1000))
        assert result.status is SUCCESS
        assert len(answers.windows) <= seen + 6, "only what was left"
        told = "Resuming the analysis after a restart: 59m59.9s of 1h0m0s are over"
        assert told in tested.host.lines
        tested.host.stage_metadata["failures"] = '{"metrics-0": 1000}'
        tested.host.stage_metadata["elapsedTime"] = "1s"
        result = await run(tested, "1h", metric(failureLimit=1000))
        assert result.message.startswith("metrics-0 failed 1001 times, 1000 allowed")


async def test_an_analysis_that_was_over_is_not_repeated(bench: Callable[..., StageBench]) -> None:
    tested = bench()
    tested.host.stage_metadata["elapsedTime"] = "1h0m1s"
    assert (await run(tested, "1h", metric())).status is SUCCESS
    tested.host.stage_metadata.update({"elapsedTime": "nonsense", "failures": "[1]"})
    assert (await run(tested, "10ms", metric(interval="1h"))).status is SUCCESS


async def test_addresses_are_asked_too(web: OpenWeb, bench: Callable[..., StageBench]) -> None:
    codes = iter([200, 500, 200, 500])
    async with web(lambda _: (next(codes), "")) as server:
        check = {"url": f"{server.url}/health", "expectedCode": 200, "interval": "20ms"}
        tested = bench()
        result = await run(tested, "1h", https=[{**check, "failureLimit": 1}])
    assert result.message == (
        "http-0 failed 2 times, 1 allowed; the last time: answered with 500 instead of 200"
    )
    assert f"[http-0] GET {server.url}/health, expected status code 200" in tested.host.lines


async def test_logs_are_searched_too(
    web: OpenWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)

    def google(asked: Any) -> tuple[int, Any]:
        if asked.path.endswith("token"):
            return 200, {"access_token": "t"}
        entries = [{"textPayload": "panic: out of luck"}]
        return 200, {"entries": entries if "panic" in asked.body.decode() else []}

    async with web(google) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
        provider = {"name": "logs", "type": "STACKDRIVER", "config": {"address": server.url}}
        entry = PluginEntry("analysis", {"analysisProviders": [provider]})
        bench = StageBench(PLUGIN(), tmp_path, entry)
        check = {"provider": "logs", "interval": "20ms"}
        checks = [{**check, "query": "quiet"}, {**check, "query": "panic"}]
        result = await run(bench, "1h", logs=checks)
    assert result.message == (
        "log-1 failed once, 0 allowed; the last time: log entry: panic: out of luck"
    )


async def test_without_anything_to_find_out_it_is_over(bench: Callable[..., StageBench]) -> None:
    assert (await run(bench(), "1h")).status is SUCCESS
    assert (await run(bench(), "1h", metric(strategy="PREVIOUS"))).status is SUCCESS
