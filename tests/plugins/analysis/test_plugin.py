# SPDX-License-Identifier: Apache-2.0
"""The stage ANALYSIS: results, failure limits, skipping and resuming."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.analysis.plugin import AnalysisPlugin
from pipecd.sdk import (
    PluginEntry,
    StageCommandKind,
    StageStatus,
    Unavailable,
    UserMistake,
)
from pipecd.sdk.testing import MemoryHost, StageBench
from plugins.analysis.conftest import MakeBench, Serve, form, metric, run
from servers.web import Request

SUCCESS, FAILURE, SKIPPED = StageStatus.SUCCESS, StageStatus.FAILURE, StageStatus.SKIPPED


class Metrics:
    """The responses of a Prometheus: the values of each query; and the requested windows."""

    def __init__(self, **values: float) -> None:
        self.values: dict[str, list[float]] = {query: [value] for query, value in values.items()}
        self.windows: list[tuple[str, float, float]] = []

    def __call__(self, request: Request) -> tuple[int, Any]:
        fields = form(request)
        query = fields["query"]
        self.windows.append((query, float(fields["start"]), float(fields["end"])))
        if query not in self.values:
            return 400, {"status": "error", "error": f"no such query: {query}"}
        points = [[at, str(value)] for at, value in enumerate(self.values[query])]
        result = [{"values": points}] if points else []
        return 200, {"status": "success", "data": {"result": result}}


async def test_the_stage_succeeds_if_every_check_is_as_expected(
    serve: Serve, make_bench: MakeBench
) -> None:
    with serve(responses := Metrics(errors=0.5)) as server:
        tested, begun = make_bench(server.address), time.time()
        result = await run(tested, "1s", metric())
    assert (result.status, result.message) == (SUCCESS, "The analysis found nothing unexpected")
    assert time.time() - begun >= 1
    assert 2 <= len(responses.windows) <= 50, "first after one interval, last at the end"
    query, start, end = responses.windows[0]
    assert query == "errors"
    assert end - start == pytest.approx(0.02, abs=0.002)
    assert end >= begun + 0.019
    assert tested.host.lines[:4] == [
        "Analysing for 1s",
        "[metric check 1] every 20ms, 0 failures allowed",
        "[metric check 1] THRESHOLD of prom",
        "[metric check 1] primary: errors",
    ]
    assert tested.host.lines[4] == "[metric check 1] fine: 1 point, 0.5, is at most 1"
    saved = json.loads(tested.host.objects["latest-analysis-result"])
    assert begun - 1 < saved["start_time"] <= end


async def test_failures_beyond_the_limit_fail_the_stage(
    serve: Serve, make_bench: MakeBench
) -> None:
    with serve(Metrics(errors=7)) as server:
        tested = make_bench(server.address)
        result = await run(tested, "1h", metric(failureLimit=2), metric(interval="30m"))
    assert result.status is FAILURE
    assert result.message == (
        "metric check 1 (prom: errors) failed 3 times, 2 allowed; "
        "the last time: 7 at 00:00:00 is above 1"
    )
    failures = [line for line in tested.host.lines if "failure " in line]
    assert failures == [
        f"[metric check 1] failure {n}, 2 allowed: 7 at 00:00:00 is above 1" for n in (1, 2, 3)
    ]
    assert "latest-analysis-result" not in tested.host.objects


async def test_failures_within_the_limit_do_not_fail_the_stage(
    serve: Serve, make_bench: MakeBench
) -> None:
    with serve(Metrics(errors=7)) as server:
        result = await run(make_bench(server.address), "50ms", metric(failureLimit=2))
    assert result.status is SUCCESS


async def test_a_check_with_the_duration_as_interval_runs_once(
    serve: Serve, make_bench: MakeBench
) -> None:
    with serve(responses := Metrics(errors=0)) as server:
        assert (
            await run(make_bench(server.address), "30ms", metric(interval="30ms"))
        ).status is SUCCESS
    assert len(responses.windows) == 1


async def test_a_check_with_a_longer_interval_never_runs(make_bench: MakeBench) -> None:
    tested = make_bench()
    assert (await run(tested, "20ms", metric(interval="1m"))).status is SUCCESS
    assert (
        "[metric check 1] will not run: its interval is longer than the analysis"
        in tested.host.lines
    )


ERRORS = [
    pytest.param(metric(query="nonsense"), "status 400: no such query: nonsense", id="a query that is refused"),
    pytest.param(metric(query="silent", timeout="10ms"), "no response within 10ms", id="a server that does not respond"),
    pytest.param(metric(query="nan"), "no data: a value is not a number", id="no data"),
]  # fmt: skip


def respond_with_errors(request: Request) -> tuple[int, Any]:
    match form(request)["query"]:
        case "silent":
            return 200, None
        case "nan":
            return 200, {"status": "success", "data": {"result": [{"values": [[0, "NaN"]]}]}}
        case query:
            return 400, {"status": "error", "error": f"no such query: {query}"}


@pytest.mark.parametrize(("check", "message"), ERRORS)
async def test_an_error_counts_as_a_failure(
    serve: Serve, make_bench: MakeBench, check: dict[str, Any], message: str
) -> None:
    with serve(respond_with_errors) as server:
        result = await run(make_bench(server.address), "1h", check)
    assert result.status is FAILURE
    assert message in result.message


async def test_no_data_may_be_skipped(serve: Serve, make_bench: MakeBench) -> None:
    with serve(respond_with_errors) as server:
        tested = make_bench(server.address)
        check = metric(query="nan", skipOnNoData=True)
        assert (await run(tested, "50ms", check)).status is SUCCESS
    assert "[metric check 1] fine: no data: a value is not a number" in tested.host.lines


CANARIES = [
    pytest.param("CANARY_BASELINE", "EITHER", FAILURE, id="a canary that differs from the baseline"),
    pytest.param("CANARY_BASELINE", "LOW", SUCCESS, id="a canary above the baseline is not too low"),
    pytest.param("CANARY_BASELINE", "HIGH", FAILURE, id="but too high"),
    pytest.param("CANARY_PRIMARY", "EITHER", SUCCESS, id="a canary like the primary"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "deviation", "status"), CANARIES)
async def test_variants_are_compared(
    serve: Serve, make_bench: MakeBench, strategy: str, deviation: str, status: StageStatus
) -> None:
    responses = Metrics()
    responses.values = {
        "tested/canary/c": [8, 9, 10, 11, 12],
        "tested/baseline/b": [1, 2, 3, 4, 5],
        "tested/primary/p": [7, 8, 10, 12, 13],
    }
    query = "{{ .App.Name }}/{{ .Variant.Name }}/{{ .VariantCustomArgs.x }}"
    args = {"canaryArgs": {"x": "c"}, "baselineArgs": {"x": "b"}, "primaryArgs": {"x": "p"}}
    with serve(responses) as server:
        check = metric(query=query, strategy=strategy, deviation=deviation, **args)
        result = await run(make_bench(server.address), "30ms", check)
    assert result.status is status
    assert len({(start, end) for _, start, end in responses.windows[:2]}) == 1, "the same window"


async def test_a_deployment_is_compared_with_the_previous_one(
    serve: Serve, make_bench: MakeBench
) -> None:
    check = metric(strategy="PREVIOUS", deviation="HIGH")
    clock = [1_700_000_000.0]
    with serve(responses := Metrics(errors=1)) as server:
        tested = make_bench(server.address, plugin=AnalysisPlugin(now=lambda: clock[0]))
        assert (await run(tested, "20ms", check)).status is SUCCESS
        line = "[metric check 1] fine: there is no earlier analysis to compare with"
        assert line in tested.host.lines
        assert responses.windows == []
        assert tested.host.objects == {"latest-analysis-result": b'{"start_time": 1700000000}'}
        clock[0] += 3600
        # Another deployment.
        tested.host.stage_metadata.clear()
        assert (await run(tested, "20ms", check)).status is SUCCESS
    (_, start, end), (_, start_then, end_then) = responses.windows
    assert end == 1_700_003_600
    assert end - start == pytest.approx(0.02, abs=0.001)
    assert end_then == pytest.approx(1_700_000_000.02, abs=0.5), "one interval after its start"
    assert end_then - start_then == pytest.approx(0.02, abs=0.001)
    assert tested.host.objects == {"latest-analysis-result": b'{"start_time": 1700003600}'}


async def test_an_unreadable_previous_result_is_ignored(
    make_bench: MakeBench,
) -> None:
    tested = make_bench()
    tested.host.objects["latest-analysis-result"] = b"nonsense"
    assert (await run(tested, "20ms", metric(strategy="PREVIOUS"))).status is SUCCESS


class UnavailableHost(MemoryHost):
    """A piped that cannot save anything."""

    async def PutStageMetadataMulti(self, request: Any) -> Any:
        raise UserMistake("no space")

    async def PutApplicationSharedObject(self, request: Any) -> Any:
        raise Unavailable("control plane unavailable")


async def test_a_failed_save_does_not_change_the_result(
    serve: Serve, make_bench: MakeBench
) -> None:
    with serve(Metrics(errors=0)) as server:
        tested = make_bench(server.address, host=UnavailableHost())
        assert (await run(tested, "40ms", metric())).status is SUCCESS
    line = "The next analysis cannot be compared with this one: control plane unavailable"
    assert line in tested.host.lines


async def test_a_user_may_skip_the_stage(serve: Serve, make_bench: MakeBench) -> None:
    with serve(Metrics(errors=0)) as server:
        tested = make_bench(server.address)
        running = asyncio.ensure_future(run(tested, "1h", metric()))
        await tested.host.until(lambda: any("fine" in line for line in tested.host.lines))
        tested.host.tell(StageCommandKind.APPROVE, "eve")
        tested.host.tell(StageCommandKind.SKIP, "ann")
        result = await running
    assert (result.status, result.message) == (SKIPPED, "Skipped by ann")
    assert tested.host.stage_metadata["pipecd/stage-display-metadata"] == "SkippedBy: ann"
    assert "latest-analysis-result" not in tested.host.objects


async def test_an_analysis_resumes_after_a_restart(serve: Serve, make_bench: MakeBench) -> None:
    with serve(responses := Metrics(errors=7)) as server:
        tested = make_bench(server.address)
        running = asyncio.ensure_future(run(tested, "1h", metric(failureLimit=1000)))
        await tested.host.until(lambda: "failures" in tested.host.stage_metadata)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        count = len(responses.windows)
        saved = dict(tested.host.stage_metadata)
        assert saved["elapsedTime"].endswith("ms")
        assert json.loads(saved["failures"]) == {"metrics-0": pytest.approx(count, abs=1)}
        tested.host.stage_metadata["elapsedTime"] = "59m59.9s"
        result = await run(tested, "1h", metric(failureLimit=1000))
        assert result.status is SUCCESS
        assert len(responses.windows) <= count + 6, "only the remaining runs"
        line = "Resuming the analysis after a restart: 59m59.9s of 1h0m0s are over"
        assert line in tested.host.lines
        tested.host.stage_metadata["failures"] = '{"metrics-0": 1000}'
        tested.host.stage_metadata["elapsedTime"] = "1s"
        result = await run(tested, "1h", metric(failureLimit=1000))
        assert result.message.startswith(
            "metric check 1 (prom: errors) failed 1001 times, 1000 allowed"
        )


async def test_a_finished_analysis_is_not_repeated(make_bench: MakeBench) -> None:
    tested = make_bench()
    tested.host.stage_metadata["elapsedTime"] = "1h0m1s"
    assert (await run(tested, "1h", metric())).status is SUCCESS
    tested.host.stage_metadata.update({"elapsedTime": "nonsense", "failures": "[1]"})
    assert (await run(tested, "10ms", metric(interval="1h"))).status is SUCCESS


async def test_http_endpoints_are_checked(serve: Serve, make_bench: MakeBench) -> None:
    codes = iter([200, 500, 200, 500])
    with serve(lambda _: (next(codes), "")) as server:
        check = {"url": f"{server.address}/health", "expectedCode": 200, "interval": "20ms"}
        tested = make_bench()
        result = await run(tested, "1h", https=[{**check, "failureLimit": 1}])
    assert result.message == (
        f"HTTP check 1 (GET {server.address}/health) failed 2 times, 1 allowed; "
        "the last time: answered with 500 instead of 200"
    )
    assert (
        f"[HTTP check 1] GET {server.address}/health, expected status code 200" in tested.host.lines
    )


async def test_the_reason_of_a_failure_has_no_secrets_of_an_address(
    serve: Serve, make_bench: MakeBench
) -> None:
    with serve(lambda _: (500, "")) as server:
        host = server.address.removeprefix("http://")
        url = f"http://maria:pass-word@{host}/health?token=to-ken#part"
        check = {"url": url, "method": "HEAD", "expectedCode": 200, "interval": "20ms"}
        result = await run(make_bench(), "1h", https=[check])
    assert result.message.startswith(f"HTTP check 1 (HEAD {server.address}/health) failed once")


async def test_the_reason_of_a_failure_has_the_beginning_of_a_long_query(
    serve: Serve, make_bench: MakeBench
) -> None:
    query = "sum(\n  errors)" + " + 0" * 30
    with serve(Metrics(**{query: 7})) as server:
        result = await run(make_bench(server.address), "1h", metric(query=query))
    begun = ("sum( errors)" + " + 0" * 30)[:59]
    assert result.message.startswith(f"metric check 1 (prom: {begun}…) failed once")


async def test_logs_are_searched(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)

    def google(request: Request) -> tuple[int, Any]:
        if request.path.endswith("token"):
            return 200, {"access_token": "t"}
        entries = [{"textPayload": "panic: out of luck"}]
        return 200, {"entries": entries if "panic" in request.body.decode() else []}

    with serve(google) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address.removeprefix("http://"))
        provider = {"name": "logs", "type": "STACKDRIVER", "config": {"address": server.address}}
        entry = PluginEntry("analysis", {"analysisProviders": [provider]})
        bench = StageBench(AnalysisPlugin(), tmp_path, entry)
        check = {"provider": "logs", "interval": "20ms"}
        checks = [{**check, "query": "quiet"}, {**check, "query": "panic"}]
        result = await run(bench, "1h", logs=checks)
    assert result.message == (
        "log check 2 (logs: panic) failed once, 0 allowed; the last time: log entry: panic: out of luck"
    )


async def test_a_stage_without_checks_succeeds(make_bench: MakeBench) -> None:
    assert (await run(make_bench(), "1h")).status is SUCCESS
    assert (await run(make_bench(), "1h", metric(strategy="PREVIOUS"))).status is SUCCESS
