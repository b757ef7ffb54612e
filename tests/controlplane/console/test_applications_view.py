# SPDX-License-Identifier: Apache-2.0
"""Applications as people read them."""

from datetime import datetime
from typing import Any

import pytest

from pipecd.controlplane.console import applications_view as view
from pipecd.controlplane.console.generation import platform, targets
from pipecd.controlplane.console.piped_status import Agent
from pipecd.model.application import SyncStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ECS
from pipecd.proto.model.deployment_pb2 import DeployTargets


def synced(status: SyncStatus, **state: Any) -> Application:
    return Application(id="a1", name="cart", sync_state={"status": int(status), **state})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("application", "text"),
    [
        pytest.param(synced(SyncStatus.SYNCED), "What runs is what Git says.", id="synced"),
        pytest.param(
            synced(SyncStatus.OUT_OF_SYNC, short_reason="2 differ"),
            "What runs differs from Git. 2 differ.",
            id="out of sync",
        ),
        pytest.param(
            synced(SyncStatus.INVALID_CONFIG, reason="line 3 is wrong"),
            "Its configuration cannot be read, so nothing is deployed. Line 3 is wrong.",
            id="a configuration nobody can read",
        ),
        pytest.param(
            synced(SyncStatus.UNKNOWN),
            "What runs has not been compared with Git yet. "
            "The first deployment starts with the next commit or with Sync.",
            id="new",
        ),
    ],
)
def test_the_story(application: Application, text: str, online_piped: Agent) -> None:
    assert view.story(application, online_piped) == text


def test_a_disabled_application_says_so_first(online_piped: Agent) -> None:
    application = synced(SyncStatus.OUT_OF_SYNC)
    application.disabled = True
    assert view.story(application, online_piped).startswith("Disabled:")


def test_the_state_is_old_while_the_piped_is_away(offline_piped: Agent) -> None:
    assert "last known state" in view.story(synced(SyncStatus.SYNCED), offline_piped)


def test_a_deployment_under_way_hides_the_last_comparison(noon: datetime) -> None:
    application = synced(SyncStatus.OUT_OF_SYNC)
    application.deploying = True
    assert view.application_row(application, noon).mark.word == "Deploying"


@pytest.mark.parametrize(
    ("triggered", "successful", "word"),
    [
        pytest.param("", "", "Never deployed", id="new"),
        pytest.param("d1", "", "Not compared", id="not yet deployed with success"),
        pytest.param("d2", "d1", "Not compared", id="the last one did not succeed"),
        pytest.param("d1", "d1", "Deployed", id="the last one succeeded"),
    ],
)
def test_without_a_comparison_the_last_deployment_counts(
    triggered: str, successful: str, word: str
) -> None:
    application = synced(SyncStatus.UNKNOWN)
    application.most_recently_triggered_deployment.deployment_id = triggered
    application.most_recently_successful_deployment.deployment_id = successful
    assert view.application_mark(application).word == word


def test_differences_are_told_apart_line_by_line() -> None:
    application = synced(SyncStatus.OUT_OF_SYNC, reason="spec:\n+ a: 1\n- a: 2\n  ~ b: 3\n")
    kinds = [line.kind for line in view.drift_lines(application)]
    assert kinds == ["same", "add", "remove", "change"]
    assert view.drift_lines(synced(SyncStatus.SYNCED, reason="+ old")) == ()


def test_a_list_in_a_sentence() -> None:
    some = [synced(SyncStatus.SYNCED), synced(SyncStatus.SYNCED), synced(SyncStatus.OUT_OF_SYNC)]
    counts = view.status_counts(some)
    assert [(count.number, count.mark.word) for count in counts] == [
        (1, "Out of sync"),
        (2, "Synced"),
    ]
    assert view.list_story(counts) == "3 applications:"
    assert view.list_story(view.status_counts(some[:2])) == "2 applications, all synced."
    assert view.list_story(()) == ""


@pytest.mark.parametrize(
    ("application", "shown", "where"),
    [
        pytest.param(
            Application(kind=ECS, platform_provider="ecs-tokyo"),
            "ECS",
            "ecs-tokyo",
            id="the first generation has a kind and a provider",
        ),
        pytest.param(
            Application(
                deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["a", "b"])}
            ),
            "kubernetes",
            "a, b",
            id="the second has plugins and targets",
        ),
        pytest.param(Application(), "", "", id="a kind without a provider means nothing"),
    ],
)
def test_where_it_is_deployed(application: Application, shown: str, where: str) -> None:
    assert (platform(application), targets(application)) == (shown, where)


@pytest.mark.parametrize(
    ("commander", "who"),
    [
        pytest.param("eve", "eve", id="a person who asked for it"),
        pytest.param("7f0b2c9e-3a55-4d0e-8a53-7f6e1f1f8d10", "ann", id="no id of a chain or a key"),
    ],
)
def test_who_brought_what_runs(noon: datetime, commander: str, who: str) -> None:
    application = Application()
    last = application.most_recently_successful_deployment
    last.deployment_id = "d"
    last.trigger.commander, last.trigger.commit.author = commander, "ann"
    running = view.application_row(application, noon).running
    assert running is not None
    assert running.by == who
