# SPDX-License-Identifier: Apache-2.0
"""The configuration of the scriptrun plugin, in both generations."""

from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.scriptrun.config import CONFIG, ScriptRunOptions
from plugins.conftest import ReadV0


def test_env_and_on_rollback_are_optional() -> None:
    options = decode_plain({"run": "make"}, ScriptRunOptions, what="SCRIPT_RUN")
    assert (options.run, options.env, options.on_rollback) == ("make", {}, "")


def test_a_stage_without_a_script_is_refused() -> None:
    with pytest.raises(ConfigMistake, match="SCRIPT_RUN stage requires run field"):
        decode_plain({}, ScriptRunOptions, what="SCRIPT_RUN")


def test_env_values_must_be_text() -> None:
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
            id="SCRIPT_RUN, whose timeout moves to the stage",
        ),
        pytest.param(
            "SCRIPT_RUN",
            {},
            {"run": ":", "env": {}},
            SIX_HOURS,
            id="SCRIPT_RUN without a script, which does nothing",
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
def test_the_stage_of_a_v0_pipeline(
    read_v0: ReadV0,
    name: str,
    options: dict[str, Any],
    expected: dict[str, Any],
    timeout: Duration,
) -> None:
    [stage] = read_v0("LambdaApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_, stage.timeout) == ("SCRIPT_RUN", expected, timeout)
    assert decode_plain(stage.with_, CONFIG.stages["SCRIPT_RUN"], what="SCRIPT_RUN")


def test_a_custom_sync_without_a_script_is_refused(read_v0: ReadV0) -> None:
    with pytest.raises(ConfigMistake, match="the CUSTOM_SYNC stage requires run field"):
        read_v0("LambdaApp", {}, [{"name": "CUSTOM_SYNC"}])
