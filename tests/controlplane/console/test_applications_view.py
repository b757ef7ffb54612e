# SPDX-License-Identifier: Apache-2.0
"""View models of applications: texts, badges and the list."""

from datetime import datetime
from typing import Any

import pytest

from pipecd.controlplane.console import applications_view as view
from pipecd.controlplane.console.deploy_targets import platform_name, target_names
from pipecd.controlplane.console.status_badge import PipedStatus, application_badge
from pipecd.controlplane.console.status_text import application_status_text
from pipecd.model.application import SyncStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ECS
from pipecd.proto.model.deployment_pb2 import DeployTargets


def synced(status: SyncStatus, **state: Any) -> Application:
    return Application(id="a1", name="cart", sync_state={"status": int(status), **state})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("application", "text"),
    [
        pytest.param(synced(SyncStatus.SYNCED), "The live state matches Git.", id="synced"),
        pytest.param(
            synced(SyncStatus.OUT_OF_SYNC, short_reason="2 differ"),
            "The live state differs from Git. 2 differ.",
            id="out of sync",
        ),
        pytest.param(
            synced(SyncStatus.INVALID_CONFIG, reason="the third line is wrong"),
            "The application configuration is invalid; nothing is deployed. The third line is wrong.",
            id="invalid configuration",
        ),
        pytest.param(
            synced(SyncStatus.UNKNOWN),
            "The live state has not been compared with Git yet. "
            "The first deployment starts by itself, or at once with Sync.",
            id="new",
        ),
        pytest.param(
            synced(SyncStatus.UNKNOWN, timestamp=1),
            "This application has no live state to compare. "
            "The first deployment starts by itself, or at once with Sync.",
            id="no plugin reads a live state",
        ),
        pytest.param(
            synced(SyncStatus.UNKNOWN, timestamp=1, reason="the cluster is down"),
            "The live state cannot be compared with Git. The cluster is down.",
            id="the live state cannot be read",
        ),
    ],
)
def test_the_status_text(application: Application, text: str, online_piped: PipedStatus) -> None:
    assert application_status_text(application, online_piped) == text


def test_a_disabled_application_says_so_first(online_piped: PipedStatus) -> None:
    application = synced(SyncStatus.OUT_OF_SYNC)
    application.disabled = True
    assert application_status_text(application, online_piped).startswith("Disabled:")


def test_the_state_may_be_old_while_the_piped_is_offline(offline_piped: PipedStatus) -> None:
    assert "last known state" in application_status_text(synced(SyncStatus.SYNCED), offline_piped)


def test_a_running_deployment_takes_precedence_over_drift(noon: datetime) -> None:
    application = synced(SyncStatus.OUT_OF_SYNC)
    application.deploying = True
    assert view.application_row(application, noon).badge.text == "Deploying"


@pytest.mark.parametrize(
    ("triggered", "successful", "word"),
    [
        pytest.param("", "", "Never deployed", id="new"),
        pytest.param("d1", "", "Not deployed", id="no deployment has succeeded"),
        pytest.param("d2", "d1", "Not deployed", id="the latest one has not succeeded"),
        pytest.param("d1", "d1", "Deployed", id="the latest one has succeeded"),
    ],
)
def test_an_unknown_sync_status_shows_the_latest_deployment(
    triggered: str, successful: str, word: str
) -> None:
    application = synced(SyncStatus.UNKNOWN)
    application.most_recently_triggered_deployment.deployment_id = triggered
    application.most_recently_successful_deployment.deployment_id = successful
    assert application_badge(application).text == word


def test_the_status_text_names_a_latest_deployment_without_success(
    online_piped: PipedStatus,
) -> None:
    application = synced(SyncStatus.UNKNOWN, timestamp=1)
    application.most_recently_triggered_deployment.deployment_id = "d2"
    application.most_recently_successful_deployment.deployment_id = "d1"
    text = application_status_text(application, online_piped)
    assert text == (
        "This application has no live state to compare. The latest deployment has not succeeded."
    )
    application.most_recently_successful_deployment.deployment_id = "d2"
    text = application_status_text(application, online_piped)
    assert text == "This application has no live state to compare."


def test_the_time_of_the_check_is_shown_if_there_was_one(
    noon: datetime, online_piped: PipedStatus
) -> None:
    def checked(application: Application) -> bool:
        return view.application_view(application, online_piped, noon).checked is not None

    assert checked(synced(SyncStatus.SYNCED, timestamp=1))
    assert checked(synced(SyncStatus.UNKNOWN, timestamp=1, reason="the cluster is down"))
    assert not checked(synced(SyncStatus.UNKNOWN, timestamp=1))
    # While something is deployed, the text is about that.
    deploying = synced(SyncStatus.SYNCED, timestamp=1)
    deploying.deploying = True
    assert not checked(deploying)


@pytest.mark.parametrize(
    ("application", "shown", "where"),
    [
        pytest.param(
            Application(kind=ECS, platform_provider="ecs-tokyo"),
            "ECS",
            "ecs-tokyo",
            id="v0 has a kind and a provider",
        ),
        pytest.param(
            Application(
                deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["a", "b"])}
            ),
            "Kubernetes",
            "a, b",
            id="v1 has plugins and targets",
        ),
        pytest.param(Application(), "", "", id="a kind without a provider is ignored"),
    ],
)
def test_platform_and_targets(application: Application, shown: str, where: str) -> None:
    assert (platform_name(application), target_names(application)) == (shown, where)


@pytest.mark.parametrize(
    ("commander", "who"),
    [
        pytest.param("eve", "eve", id="a user who requested it"),
        pytest.param("7f0b2c9e-3a55-4d0e-8a53-7f6e1f1f8d10", "ann", id="no id of a chain or a key"),
    ],
)
def test_who_triggered_the_running_version(noon: datetime, commander: str, who: str) -> None:
    application = Application()
    last = application.most_recently_successful_deployment
    last.deployment_id = "d"
    last.trigger.commander, last.trigger.commit.author = commander, "ann"
    running = view.application_row(application, noon).running
    assert running is not None
    assert running.by == who
