# SPDX-License-Identifier: Apache-2.0
"""What ANALYSIS is told: by its options, the repository and the file of the application."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.analysis.plugin import PLUGIN
from pipecd.sdk import (
    ManualOperation,
    RequestedStage,
    StageResult,
    StageStatus,
    UserMistake,
)
from pipecd.sdk.testing import StageBench

OpenWeb = Callable[..., AbstractAsyncContextManager[Any]]

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE


def metric(**changes: Any) -> dict[str, Any]:
    return {
        "provider": "prom", "query": "errors", "interval": "20ms", "expected": {"max": 1}, **changes
    }  # fmt: skip


async def run(bench: StageBench, duration: str, *metrics: Any, **more: Any) -> StageResult:
    async with asyncio.timeout(10):
        return await bench.run("ANALYSIS", {"duration": duration, "metrics": metrics, **more})


class Only:
    """A Prometheus that has an answer to one query."""

    def __init__(self, query: str, value: float) -> None:
        self.query, self.value, self.times = query, value, 0

    def __call__(self, asked: Any) -> tuple[int, Any]:
        if asked.form["query"] != self.query:
            return 400, {"status": "error", "error": "no such query"}
        self.times += 1
        result = [{"values": [[0, str(self.value)]]}]
        return 200, {"status": "success", "data": {"result": result}}


TEMPLATE = """\
apiVersion: pipecd.dev/v1beta1
kind: AnalysisTemplate
spec:
  metrics:
    error-rate:
      provider: prom
      query: rate({{ .AppCustomArgs.job }}, {{ .AppCustomArgs.zone }}, {{ .K8s.Namespace }})
      interval: 10ms
      expected: {max: 1}
    chained: {template: {name: error-rate}}
  https:
    health: {url: "http://127.0.0.1:1/", interval: 10ms, expectedCode: 200}
"""


async def test_checks_may_be_shared_by_the_repository(
    web: OpenWeb, bench: Callable[..., StageBench], tmp_path: Path
) -> None:
    (tmp_path / ".pipe").mkdir()
    (tmp_path / ".pipe" / "analysis.yaml").write_text(TEMPLATE)
    arguments = "{appCustomArgs: {job: web, zone: eu, k8sNamespace: prod}}"
    config = f"{{apiVersion: pipecd.dev/v1beta1, kind: Application, spec: {{plugins: {{analysis: {arguments}}}}}}}"
    async with web(Only("rate(api, eu, prod)", 3)) as server:
        tested = bench(server.url, config=config)
        check = {"template": {"name": "error-rate", "appArgs": {"job": "api"}}}
        result = await run(tested, "1h", check)
        assert result.message.endswith("is above 1")
        result = await run(bench(), "1h", https=[{"template": {"name": "health"}}])
        assert "http-0 failed once" in result.message


async def test_an_older_file_tells_its_namespace(
    web: OpenWeb, bench: Callable[..., StageBench]
) -> None:
    query = "up({{ .K8s.Namespace }}{{ .App.Env }})"
    config = f"""\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: tested
  input: {{namespace: shop}}
  pipeline:
    stages:
      - name: ANALYSIS
        with: {{duration: 1h, metrics: [{{provider: prom, interval: 1m, query: '{query}'}}]}}
"""
    async with web(answers := Only("up(shop)", 0)) as server:
        tested = bench(server.url, config=config)
        assert (await run(tested, "20ms", metric(query=query))).status is SUCCESS
    assert answers.times == 1


MISTAKES = [
    pytest.param(metric(provider="datadog"), "metrics-0: unknown provider name datadog; .* defined there: prom", id="a provider that does not exist"),
    pytest.param(metric(strategy="GUESS"), 'metrics-0: unknown strategy "GUESS" given; use one of THRESHOLD, ', id="a strategy that does not exist"),
    pytest.param(metric(expected={}), 'metrics-0: "expected" is required to analyze with the THRESHOLD strategy', id="a threshold without a range"),
    pytest.param(metric(query="{{ .Oops }}"), "metrics-0: template: query:1: .*Oops", id="a query that cannot be filled in"),
    pytest.param({"template": {"name": "x"}}, "analysis template x not found despite template specified; .*: chained, error-rate", id="a template that does not exist"),
    pytest.param({"template": {"name": "chained"}}, "analysis template chained names a template itself", id="a template of a template"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "told"), MISTAKES)
async def test_a_mistake_is_told_before_anything_is_measured(
    bench: Callable[..., StageBench], tmp_path: Path, check: dict[str, Any], told: str
) -> None:
    (tmp_path / ".pipe").mkdir()
    (tmp_path / ".pipe" / "analysis.yaml").write_text(TEMPLATE)
    result = await run(bench(), "1h", check)
    assert result.status is FAILURE
    assert re.match(told, result.message), result.message


async def test_an_address_without_a_code_is_a_mistake(bench: Callable[..., StageBench]) -> None:
    result = await run(bench(), "1h", https=[{"url": "http://x", "interval": "1s"}])
    assert result.message == "http-0: expectedCode must be set; write the status code of success"


async def test_the_plan_lets_people_skip_it() -> None:
    requested = RequestedStage("ANALYSIS", 3, "look", b'{"duration": "1m"}')
    (planned,) = await PLUGIN().plan_stage(requested, rollback=True)
    assert (planned.index, planned.operation) == (3, ManualOperation.SKIP)
    with pytest.raises(UserMistake, match="the ANALYSIS stage requires duration field"):
        await PLUGIN().plan_stage(RequestedStage("ANALYSIS", 0, "", b"{}"), rollback=True)
