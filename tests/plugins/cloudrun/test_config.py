# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Cloud Run plugin, in both generations."""

from typing import Any

import pytest

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.plugins.cloudrun.config import CONFIG, CloudRunApplication, CloudRunTarget
from plugins.conftest import ReadV0


@pytest.mark.parametrize("section", [{}, {"input": {"serviceManifestFile": ""}}], ids=str)
def test_the_default_service_manifest(section: dict[str, Any]) -> None:
    read = decode_plain(section, CloudRunApplication, what="cloudrun")
    assert read.input.service_manifest_file == "service.yaml"


def test_a_v0_application_becomes_a_section(read_v0: ReadV0) -> None:
    fields = {"serviceManifestFile": "s.yaml", "autoRollback": False}
    read = read_v0("CloudRunApp", {"input": fields})
    assert read.plugins == {
        "cloudrun": {"input": {"serviceManifestFile": "s.yaml"}, "quickSync": {}}
    }
    assert read.planner.auto_rollback is False


def test_a_v0_application_rolls_back_by_default(read_v0: ReadV0) -> None:
    assert read_v0("CloudRunApp", {}).planner.auto_rollback is True


STAGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("CLOUDRUN_SYNC", {}, {}),
    ("CLOUDRUN_PROMOTE", {"percent": "30%"}, {"percent": "30%"}),
    ("CLOUDRUN_PROMOTE", {}, {"percent": "0"}),
]


@pytest.mark.parametrize(("name", "options", "expected"), STAGES)
def test_a_v0_stage_is_a_stage_of_the_plugin(
    read_v0: ReadV0,
    name: str,
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    [stage] = read_v0("CloudRunApp", {}, [{"name": name, "with": options}]).pipeline.stages
    assert (stage.name, stage.with_) == (name, expected)
    assert decode_plain(stage.with_, CONFIG.stages[name], what=name)


def test_the_default_credentials_are_used_without_a_file() -> None:
    target = decode_plain({"project": "p", "region": "r"}, CloudRunTarget, what="target")
    assert target.credentials_file == ""


@pytest.mark.parametrize("missing", ["project", "region"])
def test_a_target_requires_a(missing: str) -> None:
    config = {key: "x" for key in ("project", "region") if key != missing}
    with pytest.raises(ConfigMistake, match=f"{missing} must be set"):
        decode_plain(config, CloudRunTarget, what="target")
