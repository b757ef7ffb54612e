# SPDX-License-Identifier: Apache-2.0
"""The launcher starts a piped for a reason, and hands it what is meant for it."""

import pytest

from pipecd.launcher.plan import (
    MAX_TRIAL_FAILURES,
    LaunchHistory,
    LaunchSpec,
    Running,
    piped_arguments,
    relaunch_reason,
)

V1, V2, V3 = (LaunchSpec(version, b"a") for version in ("v1", "v2", "v3"))


@pytest.mark.parametrize(
    ("running", "wanted", "reason"),
    [
        pytest.param(None, V1, "no piped was started yet", id="nothing runs yet"),
        pytest.param(Running(V1, None), V1, "", id="what runs is right"),
        pytest.param(Running(V1, 1), V1, "piped ended with exit code 1", id="the piped ended"),
        pytest.param(Running(V1, 0), V1, "piped ended with exit code 0", id="the piped was asked to restart"),
        pytest.param(Running(V1, None), V2, "version v2 is wanted instead of v1", id="another version"),
        pytest.param(Running(V1, None), LaunchSpec("v1", b"b"), "the configuration changed", id="another configuration"),
    ],
)  # fmt: skip
def test_a_piped_is_started_anew(running: Running | None, wanted: LaunchSpec, reason: str) -> None:
    assert relaunch_reason(running, wanted) == reason


def after(good: LaunchSpec | None, **failures: int) -> LaunchHistory:
    record = LaunchHistory(good)
    for version, times in failures.items():
        for _ in range(times):
            record = record.failed(LaunchSpec(version, b"a"))
    return record


@pytest.mark.parametrize(
    ("record", "order"),
    [
        pytest.param(after(None), [V2, V3], id="what is wanted comes first"),
        pytest.param(after(V1), [V2, V1, V3], id="what came up before is better than what is installed"),
        pytest.param(after(V2), [V2, V3], id="nothing is named twice"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES - 1), [V2, V1, V3], id="one that ended may try again"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES), [V1, V3, V2], id="one that used up its chances makes room"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES, v1=MAX_TRIAL_FAILURES), [V3, V2, V1], id="so does the one before it"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES, v1=MAX_TRIAL_FAILURES, v3=MAX_TRIAL_FAILURES), [V2, V1, V3], id="when all of them fail, what is wanted has its chances again"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES).lived(V2), [V2, V3], id="whoever lives is good"),
    ],
)  # fmt: skip
def test_what_to_run(record: LaunchHistory, order: list[LaunchSpec]) -> None:
    assert record.ranked(V2, V3) == order


def test_another_configuration_gets_a_chance_with_a_version_that_failed() -> None:
    corrected = LaunchSpec("v2", b"corrected")
    assert after(V1, v2=MAX_TRIAL_FAILURES).ranked(corrected, V3)[0] == corrected


def test_each_failure_is_followed_by_a_longer_pause_up_to_a_minute() -> None:
    pauses = [after(V1, v2=times).pause_before(V2) for times in (0, 1, 2, 50)]
    assert pauses == [0, 5, 10, 60]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param("launcher --config-file=a --insecure", ["--insecure"], id="own flags with an equals sign"),
        pytest.param("launcher --config-file a --insecure", ["--insecure"], id="own flags with their value behind"),
        pytest.param("launcher --piped-release pip:x --check-interval 3s", [], id="flags that only we have"),
        pytest.param("launcher --config-from-git-repo --insecure", ["--insecure"], id="own switches"),
        pytest.param("--log-level debug launcher", ["--log-level", "debug"], id="global flags before the command go on"),
        pytest.param("launcher --tools-dir=/t --unknown x", ["--tools-dir=/t", "--unknown", "x"], id="flags of piped go on"),
        pytest.param("launcher --tools-dir launcher", ["--tools-dir", "launcher"], id="a value that is called like the command"),
        pytest.param("launcher --home-dir launcher", [], id="a value of our own that is called like the command"),
    ],
)  # fmt: skip
def test_arguments_for_piped(given: str, kept: list[str]) -> None:
    assert piped_arguments(given.split()) == kept
