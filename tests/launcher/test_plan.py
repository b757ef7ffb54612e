# SPDX-License-Identifier: Apache-2.0
"""The launcher starts a piped for a reason, and hands it what is meant for it."""

import pytest

from pipecd.launcher.plan import Running, Wanted, forwarded, why_relaunch

V1 = Wanted("v1", b"a")


@pytest.mark.parametrize(
    ("running", "wanted", "reason"),
    [
        pytest.param(None, V1, "no piped was started yet", id="nothing runs yet"),
        pytest.param(Running(V1, None), V1, "", id="what runs is right"),
        pytest.param(Running(V1, 1), V1, "piped ended with exit code 1", id="the piped ended"),
        pytest.param(Running(V1, 0), V1, "piped ended with exit code 0", id="the piped was asked to restart"),
        pytest.param(Running(V1, None), Wanted("v2", b"a"), "version v2 is wanted instead of v1", id="another version"),
        pytest.param(Running(V1, None), Wanted("v1", b"b"), "the configuration changed", id="another configuration"),
    ],
)  # fmt: skip
def test_a_piped_is_started_anew(running: Running | None, wanted: Wanted, reason: str) -> None:
    assert why_relaunch(running, wanted) == reason


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param("--config-file=a --insecure", ["--insecure"], id="own flags with an equals sign"),
        pytest.param("--config-file a --insecure", ["--insecure"], id="own flags with their value behind"),
        pytest.param("--config-from-git-repo --insecure", ["--insecure"], id="own switches"),
        pytest.param("--log-level debug", ["--log-level", "debug"], id="global flags go on"),
        pytest.param("--tools-dir=/t --unknown x", ["--tools-dir=/t", "--unknown", "x"], id="flags of piped go on"),
    ],
)  # fmt: skip
def test_arguments_for_piped(given: str, kept: list[str]) -> None:
    assert forwarded(given.split()) == kept
