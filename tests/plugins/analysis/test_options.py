# SPDX-License-Identifier: Apache-2.0
"""The options of ANALYSIS: of the stage, of analysis templates and of the application."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.analysis.plugin import PLUGIN
from pipecd.sdk import (
    ManualOperation,
    RequestedStage,
    StageStatus,
    UserMistake,
)
from plugins.analysis.conftest import MakeBench, Serve, form, metric, run
from servers.web import Request

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE


class OneQuery:
    """A Prometheus that responds to one query."""

    def __init__(self, query: str, value: float) -> None:
        self.query, self.value, self.count = query, value, 0

    def __call__(self, request: Request) -> tuple[int, Any]:
        if form(request)["query"] != self.query:
            return 400, {"status": "error", "error": "no such query"}
        self.count += 1
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


async def test_checks_may_refer_to_analysis_templates(
    serve: Serve, make_bench: MakeBench, tmp_path: Path
) -> None:
    (tmp_path / ".pipe").mkdir()
    (tmp_path / ".pipe" / "analysis.yaml").write_text(TEMPLATE)
    arguments = "{appCustomArgs: {job: web, zone: eu, k8sNamespace: prod}}"
    config = f"{{apiVersion: pipecd.dev/v1beta1, kind: Application, spec: {{plugins: {{analysis: {arguments}}}}}}}"
    with serve(OneQuery("rate(api, eu, prod)", 3)) as server:
        tested = make_bench(server.address, config=config)
        check = {"template": {"name": "error-rate", "appArgs": {"job": "api"}}}
        result = await run(tested, "1h", check)
        assert result.message.endswith("is above 1")
        result = await run(make_bench(), "1h", https=[{"template": {"name": "health"}}])
        assert "HTTP check 1 (GET http://127.0.0.1:1/) failed once" in result.message


async def test_a_query_has_the_namespace_of_a_v0_application(
    serve: Serve, make_bench: MakeBench
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
    with serve(responses := OneQuery("up(shop)", 0)) as server:
        tested = make_bench(server.address, config=config)
        assert (await run(tested, "20ms", metric(query=query))).status is SUCCESS
    assert responses.count == 1


MISTAKES = [
    pytest.param(metric(provider="datadog"), "metric check 1: unknown provider name datadog; .* defined there: prom", id="a provider that does not exist"),
    pytest.param(metric(strategy="GUESS"), 'metric check 1: unknown strategy "GUESS" given; use one of THRESHOLD, ', id="a strategy that does not exist"),
    pytest.param(metric(expected={}), 'metric check 1: "expected" is required to analyze with the THRESHOLD strategy', id="a threshold without a range"),
    pytest.param(metric(query="{{ .Oops }}"), "metric check 1: template: query:1: .*Oops", id="a query that cannot be filled in"),
    pytest.param({"template": {"name": "x"}}, "analysis template x not found despite template specified; .*: chained, error-rate", id="a template that does not exist"),
    pytest.param({"template": {"name": "chained"}}, "analysis template chained names a template itself", id="a template of a template"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "message"), MISTAKES)
async def test_a_mistake_fails_the_stage_before_its_first_query(
    make_bench: MakeBench, tmp_path: Path, check: dict[str, Any], message: str
) -> None:
    (tmp_path / ".pipe").mkdir()
    (tmp_path / ".pipe" / "analysis.yaml").write_text(TEMPLATE)
    result = await run(make_bench(), "1h", check)
    assert result.status is FAILURE
    assert re.match(message, result.message), result.message


async def test_an_http_check_requires_a_status_code(make_bench: MakeBench) -> None:
    result = await run(make_bench(), "1h", https=[{"url": "http://x", "interval": "1s"}])
    assert (
        result.message == "HTTP check 1: expectedCode must be set; write the status code of success"
    )


async def test_a_planned_stage_can_be_skipped() -> None:
    requested = RequestedStage("ANALYSIS", 3, "analyse", b'{"duration": "1m"}')
    (planned,) = await PLUGIN().plan_stage(requested, rollback=True)
    assert (planned.index, planned.operation) == (3, ManualOperation.SKIP)
    with pytest.raises(UserMistake, match="the ANALYSIS stage requires duration field"):
        await PLUGIN().plan_stage(RequestedStage("ANALYSIS", 0, "", b"{}"), rollback=True)
