# SPDX-License-Identifier: Apache-2.0
"""Prometheus loads the alert rules and evaluates every expression of the dashboards."""

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from servers.programs import find
from servers.prometheus import Prometheus
from tools.test_site import load

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES = MONITORING / "pipecd-rules.yaml"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "monitoring.md"
OF_PROMETHEUS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def rules() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def dashboard_expressions() -> Iterator[str]:
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield target["expr"]


def metrics_in(expression: str) -> set[str]:
    without = re.sub(r'"[^"]*"|by \([^)]*\)', "", expression)
    names = set(re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b", re.sub(r"\{[^}]*\}", "", without)))
    return {re.sub("_bucket$", "", name) for name in names - {"histogram_quantile"}}


def test_every_metric_of_a_rule_or_dashboard_exists() -> None:
    reference = load("reference")
    known = {one.name for one in (*reference.control_plane_metrics(), *reference.piped_metrics())}
    used = {
        name
        for expression in (*(expression for _, expression in rules()), *dashboard_expressions())
        for name in metrics_in(expression)
    }
    assert len(used) > 15
    assert used - known - OF_PROMETHEUS == set()


def test_the_rules_fire_when_they_should() -> None:
    find("prometheus")
    tested = subprocess.run(
        ["promtool", "test", "rules", "pipecd-rules.test.yaml"],
        cwd=MONITORING, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout + tested.stderr
    cases = (MONITORING / "pipecd-rules.test.yaml").read_text()
    guide = GUIDE.read_text()
    assert [name for name, _ in rules() if f"alertname: {name}" not in cases] == []
    assert [name for name, _ in rules() if f"`{name}`" not in guide] == []


@pytest.mark.slow
def test_prometheus_evaluates_every_expression(prometheus: Prometheus) -> None:
    for expression in (*(expression for _, expression in rules()), *dashboard_expressions()):
        query = urllib.parse.urlencode({"query": expression})
        address = f"http://127.0.0.1:{prometheus.port}/api/v1/query?{query}"
        with urllib.request.urlopen(address) as response:
            assert json.load(response)["status"] == "success", expression
