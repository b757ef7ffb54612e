# SPDX-License-Identifier: Apache-2.0
"""The stage ANALYSIS of a piped process queries a Prometheus server, in both generations."""

import json
import time
from collections.abc import Iterator

import pytest

from pipecd.controlplane.usecases.shared_objects import SharedObjectKey
from pipecd.model.deployment import DeploymentStatus
from plugins.stages.conftest import OpenScene
from servers.control_plane import stage_statuses
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
    """A Prometheus server with good values of two pods, some minutes around now."""
    now = int(time.time())
    for pod, value in (("web-1", 0.1), ("web-2", 0.108)):
        samples = [(now + i, value) for i in range(-30, 400)]
        prometheus.write("latency", {"app": "shop", "pod": pod}, samples)
    yield prometheus


async def test_the_stage_succeeds_if_all_values_are_expected(
    open_scene: OpenScene, measured: Prometheus
) -> None:
    async with open_scene() as scene, scene.piped(v1(measured.url)):
        began = time.time()
        app = APP.format(duration="2s", metrics=LATENCY)
        done = await scene.completed(scene.push(app, **SHARED))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        lines = await scene.log_lines(done, done.stages[0])
        assert lines[:4] == [
            "Analysing for 2s",
            "[metric check 1] every 1s, 0 failures allowed",
            "[metric check 1] THRESHOLD of prom",
            '[metric check 1] primary: latency{app="shop", pod=~"web.*"}',
        ]
        fine = [line for line in lines if line.startswith("[metric check 1] fine: 4 points, ")]
        assert len(fine) == 2, lines
        assert lines[-1] == "The analysis found nothing unexpected"
        name = SharedObjectKey(scene.application_id, "analysis", "latest-analysis-result")
        stored = await scene.plane.cases.objects.get(name, by=scene.registered.caller)
        assert json.loads(stored)["start_time"] >= int(began)
        assert done.stages[0].metadata["elapsedTime"].startswith("2")

        previous = "{strategy: PREVIOUS, provider: prom, interval: 1s, query: latency}"
        again = await scene.completed(scene.push(APP.format(duration="1s", metrics=previous)))
        assert DeploymentStatus(again.status) is DeploymentStatus.SUCCESS
        line = (await scene.log_lines(again, again.stages[0]))[-2]
        assert "this deployment (median 0.104 of 4 points)" in line
        assert "the previous one (median 0.104 of 4 points)" in line


async def test_unexpected_values_fail_the_deployment(
    open_scene: OpenScene, measured: Prometheus
) -> None:
    async with open_scene() as scene, scene.piped(v0(measured.url)):
        bad = (
            "{provider: prom, interval: 1s, query: vector(9), expected: {max: 1}, failureLimit: 1}"
        )
        done = await scene.completed(scene.push(APP.format(duration="1h", metrics=bad)))
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        line = (await scene.log_lines(done, done.stages[0]))[-1]
        assert line.startswith("metric check 1 (prom: vector(9)) failed 2 times, 1 allowed; ")


async def test_an_analysis_resumes_after_piped_was_killed_and_a_user_skips_it(
    open_scene: OpenScene, measured: Prometheus
) -> None:
    async with open_scene() as scene:
        async with scene.piped(v1(measured.url), is_killed=True):
            commit = scene.push(APP.format(duration="1h", metrics=LATENCY), **SHARED)
            deployment, stage = await scene.running(commit, "ANALYSIS")
            await scene.deployment(commit, lambda d: "elapsedTime" in d.stages[0].metadata)
        async with scene.piped(v1(measured.url)):
            await scene.plane.wait_for(
                lambda: scene.log_lines(deployment, stage),
                lambda lines: any(each.startswith("Resuming the analysis") for each in lines),
            )
            await scene.plane.cases.deployments.skip(deployment.id, stage.id, by=scene.user("ann"))
            done = await scene.completed(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert stage_statuses(done) == ["ANALYSIS SKIPPED"]
        displayed = done.stages[0].metadata["pipecd/stage-display-metadata"]
        assert displayed == "SkippedBy: ann"
