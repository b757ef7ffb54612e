# SPDX-License-Identifier: Apache-2.0
"""Every status has a tone, an icon of the sprite and a text."""

import re
from importlib.resources import files

from pipecd.controlplane.console import status_badge as badges
from pipecd.controlplane.console.deploy_targets import KIND_NAMES
from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus

SPRITE = files("pipecd.controlplane.console").joinpath("assets/icons.svg").read_text()
SYMBOLS = set(re.findall(r'<symbol id="([a-z]+)"', SPRITE))


def test_every_status_has_a_badge() -> None:
    shown = [
        *(badges.deployment_badge(status) for status in DeploymentStatus),
        *(badges.stage_badge(status) for status in StageStatus),
        *(badges.sync_badge(status) for status in SyncStatus),
        badges.WAITING_FOR_APPROVAL,
    ]
    assert all(badge.text for badge in shown)
    assert {badge.icon for badge in shown} <= SYMBOLS


def test_every_kind_has_a_name() -> None:
    assert set(KIND_NAMES) == set(ApplicationKind)


def test_only_a_running_deployment_waits_for_approval() -> None:
    assert (
        badges.deployment_badge(DeploymentStatus.RUNNING, waiting=True)
        == badges.WAITING_FOR_APPROVAL
    )
    cancelled = badges.deployment_badge(DeploymentStatus.CANCELLED, waiting=True)
    assert cancelled.text == "Cancelled"
