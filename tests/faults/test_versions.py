# SPDX-License-Identifier: Apache-2.0
"""Versions side by side: pipeds and control planes are upgraded and downgraded while they are used.

The last release's piped works with today's control plane and the other way round, and no deployment
fails by that.
"""

from pathlib import Path

import pytest

from faults.applications import FaultyApplication, Platform, Shape
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
# Every program is exchanged while deployments run.
SECONDS_PER_VERSION = 10.0


def use(at: float, name: str, **options: object) -> Step:
    return Step(at, name, is_fault=False, options=options)


def work(seconds: float) -> list[Step]:
    """Pushes to all applications, with syncs and events between them."""
    steps: list[Step] = []
    for second in range(0, int(seconds), 2):
        name = APPLICATIONS[second // 2 % len(APPLICATIONS)].name
        options = {"seconds": 1.5, "lines": 20, "fails": False, "is_old": False}
        steps.append(use(second, "push", application=name, **options))
        if second % 8 == 0:
            steps.append(use(second + 0.5, "sync", application="s02", replica=0))
            steps.append(use(second + 1.0, "register_event", application="s06"))
    return steps


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
    steps = [
        *work(SECONDS_PER_VERSION * (len(exchanges) + 1)),
        *(
            use(SECONDS_PER_VERSION * (number + 1), "install", program=program, release=release)
            for number, (program, release) in enumerate(exchanges)
        ),
    ]
    async with open_trial(tmp_path, options) as trial:
        assert [str(each) for each in trial.violations] == []
        violations = await trial.run(steps)
        assert [str(each) for each in violations] == []
        assert unsuccessful(trial) == []
        assert len(trial.deployments) > 3 * len(APPLICATIONS)
        for program in trial.installed.programs:
            assert len(program.starts) > 1, program.name
