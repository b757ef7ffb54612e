# SPDX-License-Identifier: Apache-2.0
"""Why the launcher starts a piped, which version it chooses, and which flags piped gets."""

import pytest

from pipecd.launcher.plan import (
    MAX_TRIAL_FAILURES,
    LaunchedPiped,
    LaunchHistory,
    LaunchSpec,
    launch_reason,
    piped_arguments,
)

V1, V2, V3 = (LaunchSpec(version, b"a") for version in ("v1", "v2", "v3"))


@pytest.mark.parametrize(
    ("launched", "desired", "reason"),
    [
        pytest.param(None, V1, "no piped was started yet", id="the first launch"),
        pytest.param(LaunchedPiped(V1, None), V1, "", id="up to date"),
        pytest.param(LaunchedPiped(V1, 1), V1, "piped ended with exit code 1", id="the piped ended"),
        pytest.param(LaunchedPiped(V1, 0), V1, "piped ended with exit code 0", id="a restart was requested"),
        pytest.param(LaunchedPiped(V1, None), V2, "version v2 is desired instead of v1", id="another version"),
        pytest.param(LaunchedPiped(V1, None), LaunchSpec("v1", b"b"), "the configuration changed", id="another configuration"),
    ],
)  # fmt: skip
def test_the_reason_to_start_a_piped(
    launched: LaunchedPiped | None, desired: LaunchSpec, reason: str
) -> None:
    assert launch_reason(launched, desired) == reason


def after(good: LaunchSpec | None, **failures: int) -> LaunchHistory:
    history = LaunchHistory(good)
    for version, count in failures.items():
        for _ in range(count):
            history = history.failed(LaunchSpec(version, b"a"))
    return history


@pytest.mark.parametrize(
    ("history", "order"),
    [
        pytest.param(after(None), [V2, V3], id="the desired version comes first"),
        pytest.param(after(V1), [V2, V1, V3], id="the last good version is preferred to the installed one"),
        pytest.param(after(V2), [V2, V3], id="each version is tried once"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES - 1), [V2, V1, V3], id="a version that failed is retried"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES), [V1, V3, V2], id="a version that failed repeatedly comes last"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES, v1=MAX_TRIAL_FAILURES), [V3, V2, V1], id="so does the last good version"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES, v1=MAX_TRIAL_FAILURES, v3=MAX_TRIAL_FAILURES), [V2, V1, V3], id="if all fail, the desired version is tried again"),
        pytest.param(after(V1, v2=MAX_TRIAL_FAILURES).succeeded(V2), [V2, V3], id="a version that passes its trial is good"),
    ],
)  # fmt: skip
def test_the_order_of_versions_to_try(history: LaunchHistory, order: list[LaunchSpec]) -> None:
    assert history.ranked(V2, V3) == order


def test_a_failed_version_is_retried_with_another_configuration() -> None:
    corrected = LaunchSpec("v2", b"corrected")
    assert after(V1, v2=MAX_TRIAL_FAILURES).ranked(corrected, V3)[0] == corrected


def test_the_backoff_grows_up_to_a_minute() -> None:
    assert [after(V1, v2=count).backoff(V2) for count in (0, 1, 2, 50)] == [0, 5, 10, 60]


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        pytest.param("launcher --config-file=a --insecure", ["--insecure"], id="own flags with an equals sign"),
        pytest.param("launcher --config-file a --insecure", ["--insecure"], id="own flags with a separate value"),
        pytest.param("launcher --piped-release pip:x --check-interval 3s", [], id="flags that upstream does not have"),
        pytest.param("launcher --config-from-git-repo --insecure", ["--insecure"], id="own switches"),
        pytest.param("--log-level debug launcher", ["--log-level", "debug"], id="global flags before the command are passed"),
        pytest.param("launcher --tools-dir=/t --unknown x", ["--tools-dir=/t", "--unknown", "x"], id="flags of piped are passed"),
        pytest.param("launcher --tools-dir launcher", ["--tools-dir", "launcher"], id="a value with the name of the command"),
        pytest.param("launcher --home-dir launcher", [], id="a value of an own flag with the name of the command"),
    ],
)  # fmt: skip
def test_arguments_for_piped(given: str, passed: list[str]) -> None:
    assert piped_arguments(given.split()) == passed
