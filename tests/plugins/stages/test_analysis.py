# SPDX-License-Identifier: Apache-2.0
"""ANALYSIS asks a real Prometheus, on behalf of a real piped of either generation."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases.shared_objects import SharedObjectKey
from pipecd.model.deployment import DeploymentStatus
from servers.prometheus import Prometheus

pytestmark = pytest.mark.slow

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: shop
  plugins: {{analysis: {{appCustomArgs: {{pod: "web.*"}}}}}}
  pipeline:
    stages:
      - name: ANALYSIS
        with:
          duration: {duration}
          metrics: [{metrics}]
"""
TEMPLATE = """\
apiVersion: pipecd.dev/v1beta1
kind: AnalysisTemplate
spec:
  metrics:
    latency:
      provider: prom
      interval: 1s
      expected: {max: 0.5}
      query: latency{app="{{ .App.Name }}", pod=~"{{ .AppCustomArgs.pod }}"}
"""
SHARED = {".pipe/analysis.yaml": TEMPLATE}
LATENCY = "{template: {name: latency}}"


def v1(url: str) -> str:
    provider = f"{{name: prom, type: PROMETHEUS, config: {{address: {url}}}}}"
    return f"  plugins: [{{name: analysis, config: {{analysisProviders: [{provider}]}}}}]"


def v0(url: str) -> str:
    provider = f"{{name: prom, type: PROMETHEUS, config: {{address: {url}}}}}"
    return f"  analysisProviders: [{provider}]"


@pytest.fixture(scope="module")
def measured(prometheus: Prometheus) -> Iterator[Prometheus]:
    """Good values of two pods, some minutes around now."""
    now = int(time.time())
    for pod, value in (("web-1", 0.1), ("web-2", 0.108)):
        samples = [(now + i, value) for i in range(-30, 400)]
        prometheus.write("latency", {"app": "shop", "pod": pod}, samples)
    yield prometheus


async def test_good_measurements_let_the_pipeline_go_on(
    installation: Any, measured: Prometheus
) -> None:
    async with installation() as own, own.piped(v1(measured.url)):
        began = time.time()
        app = APP.format(duration="2s", metrics=LATENCY)
        done = await own.finished(own.push(app, **SHARED))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        lines = await own.lines(done, done.stages[0])
        assert lines[:4] == [
            "Analysing for 2s",
            "[metrics-0] every 1s, 0 failures allowed",
            "[metrics-0] THRESHOLD of prom",
            '[metrics-0] primary: latency{app="shop", pod=~"web.*"}',
        ]
        fine = [line for line in lines if line.startswith("[metrics-0] fine: 4 points, ")]
        assert len(fine) == 2, lines
        assert lines[-1] == "The analysis found nothing unexpected"
        name = SharedObjectKey(own.application_id, "analysis", "latest-analysis-result")
        kept = await own.cases.objects.get(name, by=PipedCaller("demo", own.piped_id))
        assert json.loads(kept)["start_time"] >= int(began)
        assert done.stages[0].metadata["elapsedTime"].startswith("2")

        previous = "{strategy: PREVIOUS, provider: prom, interval: 1s, query: latency}"
        again = await own.finished(own.push(APP.format(duration="1s", metrics=previous)))
        assert DeploymentStatus(again.status) is DeploymentStatus.SUCCESS
        told = (await own.lines(again, again.stages[0]))[-2]
        assert "this deployment (median 0.104 of 4 points)" in told
        assert "the previous one (median 0.104 of 4 points)" in told


async def test_bad_measurements_end_the_deployment(installation: Any, measured: Prometheus) -> None:
    async with installation() as own, own.piped(v0(measured.url)):
        bad = (
            "{provider: prom, interval: 1s, query: vector(9), expected: {max: 1}, failureLimit: 1}"
        )
        done = await own.finished(own.push(APP.format(duration="1h", metrics=bad)))
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        told = (await own.lines(done, done.stages[0]))[-1]
        assert told.startswith("metrics-0 failed 2 times, 1 allowed; the last time: 9 at ")


async def test_a_killed_piped_goes_on_and_a_person_may_skip_the_rest(
    installation: Any, measured: Prometheus
) -> None:
    async with installation() as own:
        async with own.piped(v1(measured.url)) as piped:
            commit = own.push(APP.format(duration="1h", metrics=LATENCY), **SHARED)
            found, stage = await own.running(commit, "ANALYSIS")
            await own.deployment(commit, lambda d: "elapsedTime" in d.stages[0].metadata)
            await piped.end()
        async with own.piped(v1(measured.url)):

            async def lines() -> list[str]:
                return await own.lines(found, stage)

            def resumed(lines: list[str]) -> bool:
                return any(line.startswith("Resuming the analysis after") for line in lines)

            await own.seen(lines, resumed)
            await own.cases.deployments.skip(found.id, stage.id, by=own.person("ann"))
            done = await own.finished(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert own.statuses(done) == ["ANALYSIS SKIPPED"]
        shown = done.stages[0].metadata["pipecd/stage-display-metadata"]
        assert shown == "SkippedBy: ann"
