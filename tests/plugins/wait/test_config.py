# SPDX-License-Identifier: Apache-2.0
"""The configuration of the wait plugin, in both generations."""

from typing import Any

import pytest

from pipecd.config.application import SkipOn
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.wait.config import CONFIG, WaitOptions
from plugins.conftest import ReadV0


def test_a_duration_is_read() -> None:
    assert decode_plain({"duration": "90s"}, WaitOptions, what="WAIT").duration == Duration(90)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="no duration"),
        pytest.param({"duration": "0s"}, id="a duration of zero"),
        pytest.param({"duration": "-1s"}, id="a negative duration"),
    ],
)
def test_an_invalid_duration_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigMistake, match="duration must be greater than 0"):
        decode_plain(options, WaitOptions, what="WAIT")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, "1m0s", id="the default of a minute"),
        pytest.param({"duration": "0s"}, "1m0s", id="zero means the default"),
        pytest.param({"duration": "-5m"}, "1m0s", id="a negative duration means the default"),
        pytest.param({"duration": "5m"}, "5m0s", id="the configured duration"),
    ],
)
def test_the_duration_of_a_v0_stage(
    read_v0: ReadV0, options: dict[str, Any], expected: str
) -> None:
    app = read_v0("KubernetesApp", {}, [{"name": "WAIT", "with": options}])
    [stage] = app.pipeline.stages
    assert (stage.name, stage.with_) == ("WAIT", {"duration": expected})
    assert decode_plain(stage.with_, CONFIG.stages["WAIT"], what="WAIT")


def test_skip_on_of_a_v0_stage_moves_to_the_stage(
    read_v0: ReadV0,
) -> None:
    options = {"duration": "5m", "skipOn": {"paths": ["docs/**"]}}
    [stage] = read_v0("ECSApp", {}, [{"name": "WAIT", "with": options}]).pipeline.stages
    assert stage.skip_on == SkipOn(paths=("docs/**",))
    assert stage.with_ == {"duration": "5m0s"}
