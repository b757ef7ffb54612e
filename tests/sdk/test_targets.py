# SPDX-License-Identifier: Apache-2.0
"""Platforms that deploy an application to exactly one deploy target."""

import pytest

from pipecd.sdk import DeployTarget, UserMistake
from pipecd.sdk.targets import only_target

DEV, PROD = (DeployTarget(name, {}, {}) for name in ("dev", "prod"))


def test_the_only_deploy_target_is_used() -> None:
    assert only_target([DEV], "ECS") is DEV


@pytest.mark.parametrize(
    ("targets", "names"), [([], "none"), ([DEV, PROD], "dev, prod")], ids=["none", "two"]
)
def test_another_number_is_refused(targets: list[DeployTarget], names: str) -> None:
    with pytest.raises(UserMistake, match=f"ECS has one deploy target, and this one has {names};"):
        only_target(targets, "ECS")
