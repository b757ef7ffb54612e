# SPDX-License-Identifier: Apache-2.0
"""How long a WAIT stage waits, in both generations."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec, SkipOn
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.wait.config import CONFIG, WaitOptions


def test_a_duration_is_read() -> None:
    assert decode_plain({"duration": "90s"}, WaitOptions, what="WAIT").duration == Duration(90)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="no duration"),
        pytest.param({"duration": "0s"}, id="no time"),
        pytest.param({"duration": "-1s"}, id="a time in the past"),
    ],
)
def test_waiting_is_refused_with(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigMistake, match="duration must be greater than 0"):
        decode_plain(options, WaitOptions, what="WAIT")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, "1m0s", id="a minute when it is not told"),
        pytest.param({"duration": "0s"}, "1m0s", id="a minute when told nothing"),
        pytest.param({"duration": "-5m"}, "1m0s", id="a minute when told the past"),
        pytest.param({"duration": "5m"}, "5m0s", id="as long as told"),
    ],
)
def test_a_v0_stage_waits(
    read_v0: Callable[..., ApplicationSpec], options: dict[str, Any], expected: str
) -> None:
    app = read_v0("KubernetesApp", {}, [{"name": "WAIT", "with": options}])
    [stage] = app.pipeline.stages
    assert (stage.name, stage.with_) == ("WAIT", {"duration": expected})
    assert decode_plain(stage.with_, CONFIG.stages["WAIT"], what="WAIT")


def test_a_v0_stage_says_among_its_options_when_it_is_skipped(
    read_v0: Callable[..., ApplicationSpec],
) -> None:
    options = {"duration": "5m", "skipOn": {"paths": ["docs/**"]}}
    [stage] = read_v0("ECSApp", {}, [{"name": "WAIT", "with": options}]).pipeline.stages
    assert stage.skip_on == SkipOn(paths=("docs/**",))
    assert stage.with_ == {"duration": "5m0s"}
