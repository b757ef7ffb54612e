# SPDX-License-Identifier: Apache-2.0
"""Why the launcher starts a piped, which version it chooses, and which flags piped gets."""

import math

import pytest

from pipecd.launcher.plan import (
    MAX_TRIAL_FAILURES,
    LaunchedPiped,
    LaunchHistory,
    LaunchSpec,
    lost_plugins,
    piped_arguments,
    plan_launches,
)
from pipecd.program.handover import Phase, PipedReport

V1, V2, V3 = (LaunchSpec(version, b"a") for version in ("v1", "v2", "v3"))


def after(good: LaunchSpec | None, **failures: int) -> LaunchHistory:
    """The history after a launch of each version failed so often, the last time at 100 seconds."""
    history = LaunchHistory(good)
    for version, count in failures.items():
        for _ in range(count):
            spec = LaunchSpec(version, b"a")
            history = history.failed(spec, "it broke", at=100.0, interrupted=False)
    return history


RUNNING_V1, OTHER_CONFIG = LaunchedPiped(V1, None), LaunchSpec("v1", b"b")


@pytest.mark.parametrize(
    ("launched", "desired", "reason"),
    [
        pytest.param(None, V1, "no piped was started yet", id="the first launch"),
        pytest.param(RUNNING_V1, V1, "", id="up to date"),
        pytest.param(LaunchedPiped(V1, 1), V1, "piped ended with exit code 1", id="the piped ended"),
        pytest.param(LaunchedPiped(V1, 0), V1, "piped ended with exit code 0", id="a restart was requested"),
        pytest.param(RUNNING_V1, V2, "version v2 is desired instead of v1", id="another version"),
        pytest.param(RUNNING_V1, OTHER_CONFIG, "the configuration changed", id="another configuration"),
    ],
)  # fmt: skip
def test_the_reason_to_start_a_piped(
    launched: LaunchedPiped | None, desired: LaunchSpec, reason: str
) -> None:
    launches = plan_launches(desired, launched=launched, history=after(None))
    assert [launch.reason for launch in launches] == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("history", "order"),
    [
        pytest.param(after(None), [V2, V3], id="the desired version comes first"),
        pytest.param(after(V1), [V2, V1, V3], id="the last good version is preferred to the installed one"),
        pytest.param(after(V2), [V2, V3], id="each version is tried once"),
        pytest.param(after(V1, v2=1), [V1, V3, V2], id="a version that failed comes after the last good one"),
        pytest.param(after(V1, v2=1, v1=MAX_TRIAL_FAILURES - 1), [V1, V3, V2], id="the last good version is retried"),
        pytest.param(after(V1, v2=1, v1=MAX_TRIAL_FAILURES), [V3, V2, V1], id="but not forever"),
        pytest.param(after(None, v2=MAX_TRIAL_FAILURES - 1), [V2, V3], id="without a good version the desired one is retried"),
        pytest.param(after(None, v2=MAX_TRIAL_FAILURES), [V3, V2], id="but not forever either"),
        pytest.param(after(V1, v2=1, v1=MAX_TRIAL_FAILURES, v3=1), [V2, V1, V3], id="if all fail, the desired version is tried again"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES).succeeded(V2), [V2, V3], id="a version that passes its trial is good"),
    ],
)  # fmt: skip
def test_the_order_of_versions_to_try_while_nothing_runs(
    history: LaunchHistory, order: list[LaunchSpec]
) -> None:
    launches = plan_launches(V2, V3, launched=LaunchedPiped(V1, 1), history=history)
    assert [launch.spec for launch in launches] == order


@pytest.mark.parametrize("failures", [0, 1, 50])
def test_a_running_piped_is_replaced_by_the_desired_one_only(failures: int) -> None:
    launches = plan_launches(V2, V3, launched=RUNNING_V1, history=after(V1, v2=failures))
    assert [launch.spec for launch in launches] == [V2]


def test_a_failed_version_is_tried_at_once_with_another_configuration() -> None:
    corrected = LaunchSpec("v2", b"corrected")
    history = after(V1, v2=MAX_TRIAL_FAILURES)
    (launch,) = plan_launches(corrected, V3, launched=RUNNING_V1, history=history)
    assert launch.at == 0


def test_a_last_good_version_without_failures_starts_at_once() -> None:
    launches = plan_launches(V2, launched=LaunchedPiped(V2, 1), history=after(V1, v2=1))
    assert [(launch.spec, launch.at) for launch in launches] == [(V1, 0), (V2, 105)]


def test_the_backoff_of_a_restart_grows_up_to_a_minute() -> None:
    waits = [after(V1, v2=count).restart_at(V2) for count in (0, 1, 2, 50)]
    assert waits == [0, 105, 110, 160]


def test_the_backoff_of_an_upgrade_grows_up_to_an_hour() -> None:
    waits = [after(V1, v2=count).upgrade_at(V2) for count in (0, 1, 2, 3, 50)]
    assert waits == [0, 160, 220, 340, 3700]


def test_a_running_piped_is_not_stopped_again_and_again_for_a_version_that_fails() -> None:
    history, waits = LaunchHistory(V1), list[float]()
    for _ in range(MAX_TRIAL_FAILURES):
        history = history.failed(V2, "it broke", at=100.0, interrupted=True)
        waits.append(history.upgrade_at(V2))
    assert waits == [160, 220, math.inf]


@pytest.mark.parametrize(
    ("usable", "unusable", "lost"),
    [
        pytest.param(["a", "a/x"], {}, [], id="everything works"),
        pytest.param(["a", "a/x"], {"a/x": "no"}, ["a/x"], id="a deploy target is lost"),
        pytest.param(["a"], {"b": "no"}, [], id="a new plugin may fail"),
        pytest.param([], {"a": "no"}, [], id="a plugin that failed before may fail"),
    ],
)  # fmt: skip
def test_plugins_that_worked_before_must_work(
    usable: list[str], unusable: dict[str, str], lost: list[str]
) -> None:
    before = PipedReport(Phase.RUNNING, usable=usable)
    after = PipedReport(Phase.READY, unusable=unusable)
    assert list(lost_plugins(before, after)) == lost
    assert not lost_plugins(None, after)


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        pytest.param("launcher --config-file=a --insecure", ["--insecure"], id="own flags with an equals sign"),
        pytest.param("launcher --config-file a --insecure", ["--insecure"], id="own flags with a separate value"),
        pytest.param("launcher --piped-release pip:x --check-interval 3s", [], id="flags that upstream does not have"),
        pytest.param("launcher --start-timeout 3s --grace-period 3s", ["--grace-period", "3s"], id="the grace period is that of piped too"),
        pytest.param("launcher --config-from-git-repo --insecure", ["--insecure"], id="own switches"),
        pytest.param("--log-level debug launcher", ["--log-level", "debug"], id="global flags before the command are passed"),
        pytest.param("launcher --tools-dir=/t --unknown x", ["--tools-dir=/t", "--unknown", "x"], id="flags of piped are passed"),
        pytest.param("launcher --tools-dir launcher", ["--tools-dir", "launcher"], id="a value with the name of the command"),
        pytest.param("launcher --home-dir launcher", [], id="a value of an own flag with the name of the command"),
    ],
)  # fmt: skip
def test_arguments_for_piped(given: str, passed: list[str]) -> None:
    assert piped_arguments(given.split()) == passed
