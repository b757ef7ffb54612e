# SPDX-License-Identifier: Apache-2.0
"""What the Cloud Run plugin is told, in both generations."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.plugins.cloudrun.config import CONFIG, CloudRunApplication, CloudRunTarget


@pytest.mark.parametrize("section", [{}, {"input": {"serviceManifestFile": ""}}], ids=str)
def test_an_empty_section_names_the_usual_file(section: dict[str, Any]) -> None:
    read = decode_plain(section, CloudRunApplication, what="cloudrun")
    assert read.input.service_manifest_file == "service.yaml"


def test_a_v0_application_becomes_a_section(read_v0: Callable[..., ApplicationSpec]) -> None:
    given = {"serviceManifestFile": "s.yaml", "autoRollback": False}
    read = read_v0("CloudRunApp", {"input": given})
    assert read.plugins == {
        "cloudrun": {"input": {"serviceManifestFile": "s.yaml"}, "quickSync": {}}
    }
    assert read.planner.auto_rollback is False


def test_a_v0_application_rolls_back_unless_told(read_v0: Callable[..., ApplicationSpec]) -> None:
    assert read_v0("CloudRunApp", {}).planner.auto_rollback is True


STAGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("CLOUDRUN_SYNC", {}, {}),
    ("CLOUDRUN_PROMOTE", {"percent": "30%"}, {"percent": "30%"}),
    ("CLOUDRUN_PROMOTE", {}, {"percent": "0"}),
]


@pytest.mark.parametrize(("name", "options", "expected"), STAGES)
def test_a_v0_stage_is_a_stage_of_the_plugin(
    read_v0: Callable[..., ApplicationSpec],
    name: str,
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    [stage] = read_v0("CloudRunApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_) == (name, expected)
    assert decode_plain(stage.with_, CONFIG.stages[name], what=name)


def test_a_target_uses_the_default_credentials_unless_told() -> None:
    target = decode_plain({"project": "p", "region": "r"}, CloudRunTarget, what="target")
    assert target.credentials_file == ""


@pytest.mark.parametrize("missing", ["project", "region"])
def test_a_target_needs_a(missing: str) -> None:
    config = {key: "x" for key in ("project", "region") if key != missing}
    with pytest.raises(ConfigMistake, match=f"{missing} must be set"):
        decode_plain(config, CloudRunTarget, what="target")
