# SPDX-License-Identifier: Apache-2.0
"""The report of a test run: seconds per directory, and flaky tests.

`make test` repeats what failed, alone. A test that passes then is flaky: it is printed, and added to
`build/flaky.txt` so that it can be fixed.
"""

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAKY = ROOT / "build" / "flaky.txt"
# Set by the Makefile for the run that repeats failed tests.
IS_REPEATED = os.environ.get("PIPECD_TESTS_REPEATED") == "1"
MOST_DIRECTORIES = 25


def directory_of(node: str) -> str:
    """The directory of a test below `tests`, two levels deep."""
    return "/".join(Path(node.partition("::")[0]).parent.parts[:3])


def seconds_per_directory(reports: list[pytest.TestReport]) -> list[tuple[str, float]]:
    taken: Counter[str] = Counter()
    for report in reports:
        taken[directory_of(report.nodeid)] += report.duration  # pyright: ignore[reportArgumentType]
    return [(name, float(seconds)) for name, seconds in taken.most_common(MOST_DIRECTORIES)]


def record_flaky(nodes: list[str], now: datetime) -> None:
    """Appends the tests to the report; the newest lines are at the end."""
    FLAKY.parent.mkdir(exist_ok=True)
    with FLAKY.open("a") as report:
        report.writelines(f"{now:%Y-%m-%dT%H:%M:%SZ} {node}\n" for node in nodes)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Drops the group that pytest-xdist adds to the name of a test.

    `--last-failed` does not find a test by its name with the group, and would repeat it never.
    """
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not is_worker and report.nodeid.rfind("@") > report.nodeid.rfind("]"):
        report.nodeid = report.nodeid.rpartition("@")[0]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if hasattr(terminalreporter.config, "workerinput"):
        return
    reports = [
        report
        for outcome in terminalreporter.stats.values()
        for report in outcome
        if isinstance(report, pytest.TestReport)
    ]
    if terminalreporter.config.option.durations is not None:
        terminalreporter.section("seconds of test time per directory")
        for name, seconds in seconds_per_directory(reports):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
    if IS_REPEATED:
        passed = [r.nodeid for r in reports if r.when == "call" and r.passed]
        if passed:
            terminalreporter.section("flaky: failed beside other tests, passed alone")
            for node in passed:
                terminalreporter.write_line(f"FLAKY {node}")
            terminalreporter.write_line(f"added to {FLAKY.relative_to(ROOT)}")
            record_flaky(passed, datetime.now(UTC))
