# SPDX-License-Identifier: Apache-2.0
"""Every status of the wire has a tone, an icon of the sprite and a word."""

import re
from importlib.resources import files

from pipecd.controlplane.console import status_badge as marks
from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus

SPRITE = files("pipecd.controlplane.console").joinpath("assets/icons.svg").read_text()
SYMBOLS = set(re.findall(r'<symbol id="([a-z]+)"', SPRITE))


def test_no_status_is_forgotten() -> None:
    shown = [
        *(marks.deployment_mark(status) for status in DeploymentStatus),
        *(marks.stage_mark(status) for status in StageStatus),
        *(marks.sync_mark(status) for status in SyncStatus),
        marks.WAITING,
    ]
    assert all(mark.word for mark in shown)
    assert {mark.icon for mark in shown} <= SYMBOLS


def test_no_kind_is_forgotten() -> None:
    assert all(marks.kind_word(kind) for kind in ApplicationKind)


def test_only_a_running_deployment_waits_for_approval() -> None:
    assert marks.deployment_mark(DeploymentStatus.RUNNING, waiting=True) == marks.WAITING
    cancelled = marks.deployment_mark(DeploymentStatus.CANCELLED, waiting=True)
    assert cancelled.word == "Cancelled"
