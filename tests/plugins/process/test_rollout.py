# SPDX-License-Identifier: Apache-2.0
"""Whether a rollout is done or has failed."""

from dataclasses import replace

import pytest

from pipecd.plugins.process.desired import DesiredApplication, DesiredVariant, Listener, Program
from pipecd.plugins.process.instance import ApplicationStatus, Instance, Phase
from pipecd.plugins.process.rollout import rollout_progress, timeout_failure

PROGRAM = Program("/r", "c0ffee", "d", "serve")


def status(phase: Phase, *, restarts: int = 0, crashes: int = 0) -> ApplicationStatus:
    desired = DesiredApplication(
        "1", "shop", {"primary": DesiredVariant(PROGRAM)}, {"primary": 100}
    )
    instance = Instance(
        "primary",
        PROGRAM.identity,
        0,
        phase,
        0,
        restarts=restarts,
        crashes=crashes,
        exit="exited with code 1",
    )
    return ApplicationStatus(desired, (instance,), serving={"primary": PROGRAM.identity})


@pytest.mark.parametrize(
    ("given", "failure", "is_done"),
    [
        pytest.param(status(Phase.STARTING), "", False, id="it starts"),
        pytest.param(status(Phase.HEALTHY), "", True, id="it is healthy and served"),
        pytest.param(status(Phase.HEALTHY, restarts=7), "", True, id="it was restarted long ago"),
        pytest.param(status(Phase.EXITED, crashes=1), "", False, id="it exited once"),
        pytest.param(
            status(Phase.EXITED, restarts=1, crashes=2),
            "primary instance 0 exited with code 1",
            False,
            id="it exited twice",
        ),
        pytest.param(
            status(Phase.EXITED, restarts=7, crashes=1),
            "",
            False,
            id="an old instance happens to be restarted",
        ),
        pytest.param(
            replace(status(Phase.HEALTHY), listen_error="port 80 is in use"),
            "port 80 is in use",
            False,
            id="the router cannot listen",
        ),
        pytest.param(
            replace(
                status(Phase.HEALTHY),
                desired=replace(status(Phase.HEALTHY).desired, listener=Listener("127.0.0.1", 80)),
            ),
            "",
            False,
            id="the router does not listen yet",
        ),
        pytest.param(
            replace(status(Phase.HEALTHY), serving={"primary": "another"}),
            "",
            False,
            id="requests still go to the version before",
        ),
    ],
)
def test_the_progress_of_a_rollout(given: ApplicationStatus, failure: str, is_done: bool) -> None:
    progress = rollout_progress(given, "primary")
    assert (progress.failure, progress.is_done) == (failure, is_done)


@pytest.mark.parametrize(
    ("phase", "health", "ended", "failure"),
    [
        pytest.param(Phase.STARTING, "", "", "was not healthy within 30s: it has not answered yet", id="it has not answered"),
        pytest.param(Phase.STARTING, "GET / failed", "", "was not healthy within 30s: GET / failed", id="it answers with an error"),
        pytest.param(Phase.STARTING, "GET / failed", "exited with code 1", "was not healthy within 30s: exited with code 1", id="it has exited before"),
        pytest.param(Phase.UNHEALTHY, "GET / failed", "exited with code 1", "was not healthy within 30s: GET / failed", id="it is unhealthy"),
        pytest.param(Phase.EXITED, "", "was not healthy for 30s: GET / failed, and was ended by SIGTERM", "was not healthy for 30s: GET / failed, and was ended by SIGTERM", id="it was ended because it was unhealthy"),
    ],
)  # fmt: skip
def test_the_failure_of_a_rollout_that_takes_too_long(
    phase: Phase, health: str, ended: str, failure: str
) -> None:
    given = status(phase)
    instance = replace(given.instances[0], health=health, exit=ended)
    progress = timeout_failure(replace(given, instances=(instance,)), "primary")
    assert progress.failure == f"primary instance 0 {failure}"
