# SPDX-License-Identifier: Apache-2.0
"""What a script stage is told, in both generations."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.scriptrun.config import CONFIG, ScriptRunOptions


def test_a_script_has_no_environment_and_nothing_to_undo_unless_told() -> None:
    options = decode_plain({"run": "make"}, ScriptRunOptions, what="SCRIPT_RUN")
    assert (options.run, options.env, options.on_rollback) == ("make", {}, "")


def test_a_stage_without_a_script_is_refused() -> None:
    with pytest.raises(ConfigMistake, match="SCRIPT_RUN stage requires run field"):
        decode_plain({}, ScriptRunOptions, what="SCRIPT_RUN")


def test_an_environment_holds_text() -> None:
    with pytest.raises(ConfigMistake, match="must be a string, not a number"):
        decode_plain({"run": "make", "env": {"A": 1}}, ScriptRunOptions, what="SCRIPT_RUN")


SIX_HOURS = Duration(6 * 3600)


@pytest.mark.parametrize(
    ("name", "options", "expected", "timeout"),
    [
        pytest.param(
            "SCRIPT_RUN",
            {"run": "make", "env": {"A": "1"}, "timeout": "5m", "onRollback": "undo"},
            {"run": "make", "env": {"A": "1"}, "onRollback": "undo"},
            Duration(300),
            id="SCRIPT_RUN keeps its script and gets its limit beside the options",
        ),
        pytest.param(
            "SCRIPT_RUN",
            {},
            {"run": ":", "env": {}},
            SIX_HOURS,
            id="SCRIPT_RUN without a script succeeds without doing anything",
        ),
        pytest.param(
            "CUSTOM_SYNC",
            {"run": "sam deploy", "envs": {"A": "1"}},
            {"run": "sam deploy", "env": {"A": "1"}},
            SIX_HOURS,
            id="CUSTOM_SYNC is a SCRIPT_RUN",
        ),
    ],
)
def test_in_a_v0_pipeline(
    read_v0: Callable[..., ApplicationSpec],
    name: str,
    options: dict[str, Any],
    expected: dict[str, Any],
    timeout: Duration,
) -> None:
    [stage] = read_v0("LambdaApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_, stage.timeout) == ("SCRIPT_RUN", expected, timeout)
    assert decode_plain(stage.with_, CONFIG.stages["SCRIPT_RUN"], what="SCRIPT_RUN")


def test_a_custom_sync_without_a_script_is_refused(read_v0: Callable[..., ApplicationSpec]) -> None:
    with pytest.raises(ConfigMistake, match="the CUSTOM_SYNC stage requires run field"):
        read_v0("LambdaApp", {}, [{"name": "CUSTOM_SYNC"}])
