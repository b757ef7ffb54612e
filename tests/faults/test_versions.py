# SPDX-License-Identifier: Apache-2.0
"""Versions side by side: pipeds and control planes are upgraded and downgraded while they are used.

The last release's piped works with today's control plane and the other way round, upstream's pipeds work
with both, and no deployment fails by that.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.applications import FaultyApplication, Platform, Shape, Upstream
from faults.layouts import Layout
from faults.program import CURRENT, Release
from faults.releases import LAST_RELEASE, sources_of
from faults.schedule import Step
from faults.trial import Trial, open_trial
from faults.whole_installation import Options
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Unsupported

APPLICATIONS = (
    FaultyApplication("s00", Platform.SCRIPT, 0),
    FaultyApplication("s01", Platform.SCRIPT, 0, Shape.ROLLBACK),
    FaultyApplication("s02", Platform.SCRIPT, 1),
    FaultyApplication("s03", Platform.SCRIPT, 1, Shape.ANALYSIS),
    FaultyApplication("s06", Platform.SCRIPT, 0, Shape.EVENTS),
)
# Upstream's pipeds have these; scripts run by the second generation, Terraform by the first.
UPSTREAM_APPLICATIONS = (
    FaultyApplication("s10", Platform.SCRIPT, 2, upstream=Upstream.SECOND),
    FaultyApplication("s11", Platform.SCRIPT, 2, Shape.ROLLBACK, upstream=Upstream.SECOND),
    FaultyApplication("t10", Platform.TERRAFORM, 3, upstream=Upstream.FIRST),
    FaultyApplication("t11", Platform.TERRAFORM, 3, upstream=Upstream.FIRST),
)
# Every program is exchanged while deployments run.
SECONDS_PER_VERSION = 10.0


def use(at: float, name: str, **options: object) -> Step:
    return Step(at, name, is_fault=False, options=options)


def push(at: float, application: str) -> Step:
    options = {"seconds": 1.5, "lines": 20, "fails": False, "is_old": False}
    return use(at, "push", application=application, **options)


def work(seconds: float) -> list[Step]:
    """Pushes to all applications, with syncs and events between them."""
    steps: list[Step] = []
    for second in range(0, int(seconds), 2):
        steps.append(push(second, APPLICATIONS[second // 2 % len(APPLICATIONS)].name))
        if second % 8 == 0:
            steps.append(use(second + 0.5, "sync", application="s02", replica=0))
            steps.append(use(second + 1.0, "register_event", application="s06"))
    return steps


def upstream_work(seconds: float) -> list[Step]:
    """Pushes and syncs at the pace of upstream's pipeds, which take half a minute for each."""
    steps: list[Step] = []
    for second in range(0, int(seconds) - 10, 30):
        steps += [push(second + 0.5 * n, a.name) for n, a in enumerate(UPSTREAM_APPLICATIONS)]
    return [*steps, use(15, "sync", application="s10", replica=0)]


def installations(exchanges: Sequence[tuple[str, str]]) -> list[Step]:
    """One program is replaced by a release after the other."""
    return [
        use(SECONDS_PER_VERSION * (number + 1), "install", program=program, release=release)
        for number, (program, release) in enumerate(exchanges)
    ]


def unsuccessful(trial: Trial) -> list[str]:
    """The deployments that failed; those that a newer push superseded are cancelled."""
    return [
        f"{each.application_name} {each.id}: {each.status_reason}"
        for each in trial.deployments
        if DeploymentStatus(each.status) is not DeploymentStatus.SUCCESS
        and "superseded" not in each.status_reason.lower()
    ]


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    try:
        return sources_of(LAST_RELEASE, tmp_path_factory.mktemp("release"))
    except Unsupported as e:
        pytest.skip(str(e))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_versions_work_side_by_side_through_an_upgrade_and_a_downgrade(
    tmp_path: Path, last_release: Release
) -> None:
    options = Options(
        Layout.SQLITE,
        APPLICATIONS,
        pipeds=2,
        releases={"last": last_release, "new": CURRENT},
        first_releases={"replica-0": "last", "piped-0": "last"},
    )
    exchanges = [
        ("replica-0", "new"), ("piped-0", "new"), ("piped-1", "last"),
        ("piped-1", "new"), ("piped-0", "last"), ("replica-0", "last"),
    ]  # fmt: skip
    steps = [*work(SECONDS_PER_VERSION * (len(exchanges) + 1)), *installations(exchanges)]
    async with open_trial(tmp_path, options) as trial:
        assert [str(each) for each in trial.violations] == []
        violations = await trial.run(steps)
        assert [str(each) for each in violations] == []
        assert unsuccessful(trial) == []
        assert len(trial.deployments) > 3 * len(APPLICATIONS)
        for program in trial.installed.programs:
            assert len(program.starts) > 1, program.name


@pytest.fixture
def upstream_pipeds() -> dict[Upstream, Release]:
    """Upstream's pipeds, which the test suite does not build."""
    directory = Path(os.environ.get("PIPECD_UPSTREAM", "missing"))
    missing = [name for name in Upstream if not (directory / name).exists()]
    if missing:
        pytest.skip(f"PIPECD_UPSTREAM names no directory with upstream's {', '.join(missing)}")
    return {name: Release(upstream_piped=(directory / name).resolve()) for name in Upstream}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_upstreams_pipeds_work_through_an_upgrade_and_a_downgrade_beside_ours(
    tmp_path: Path, last_release: Release, upstream_pipeds: dict[Upstream, Release], terraform: str
) -> None:
    applications = (*APPLICATIONS, *UPSTREAM_APPLICATIONS)
    options = Options(
        Layout.SQLITE,
        applications,
        pipeds=4,
        releases={"last": last_release, "new": CURRENT, **upstream_pipeds},
        first_releases={
            "replica-0": "last",
            "piped-0": "last",
            "piped-2": Upstream.SECOND,
            "piped-3": Upstream.FIRST,
        },
    )
    exchanges = [
        ("replica-0", "new"), ("piped-0", "new"), ("replica-0", "last"), ("piped-1", "last"),
        ("replica-0", "new"), ("piped-1", "new"),
    ]  # fmt: skip
    seconds = SECONDS_PER_VERSION * (len(exchanges) + 1)
    steps = [*work(seconds), *upstream_work(seconds), *installations(exchanges)]
    async with open_trial(tmp_path, options) as trial:
        assert [str(each) for each in trial.violations] == []
        violations = await trial.run(steps)
        assert [str(each) for each in violations] == []
        assert unsuccessful(trial) == []
        deployed = Counter(each.application_name for each in trial.deployments)
        assert all(deployed[each.name] >= 3 for each in applications), deployed
