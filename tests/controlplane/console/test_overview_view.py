# SPDX-License-Identifier: Apache-2.0
"""View models of the overview."""

from collections.abc import Callable
from datetime import datetime

import pytest

from pipecd.controlplane.console.overview_view import (
    ProjectState,
    Tile,
    overview_text,
    overview_tiles,
    waiting_text,
)
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.application_pb2 import (
    INVALID_CONFIG,
    OUT_OF_SYNC,
    Application,
    ApplicationSyncState,
)
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.piped_pb2 import Piped


def tiles(state: ProjectState, now: datetime) -> dict[str, Tile]:
    return {tile.key: tile for tile in overview_tiles(state, "ann", now)}


def test_an_empty_project_says_so(noon: datetime) -> None:
    shown = tiles(ProjectState((), (), (), ()), noon)
    assert {tile.count for tile in shown.values()} == {0}
    assert shown["offline"].nothing == "No piped is registered yet."


def test_the_first_sentence_says_what_needs_somebody(
    make_stage: Callable[..., PipelineStage], make_deployment: Callable[..., Deployment]
) -> None:
    def text(state: ProjectState) -> str:
        return overview_text(state, "ann")

    running = make_deployment(id="r", status=pb.DEPLOYMENT_RUNNING)
    offline = Piped(id="p1", name="tokyo", status=Piped.OFFLINE, started_at=1)
    new = Piped(id="p2", name="osaka", status=Piped.OFFLINE)
    failed = make_deployment(id="f", application_name="cart", status=pb.DEPLOYMENT_FAILURE)
    again = make_deployment(id="g", application_name="cart", status=pb.DEPLOYMENT_FAILURE)
    other = make_deployment(id="h", application_name="shop", status=pb.DEPLOYMENT_FAILURE)
    nothing = "Nothing needs you, and no deployment is in progress."
    assert text(ProjectState((), (), (), ())) == nothing
    # A piped that was never started is no failure.
    assert text(ProjectState((), (), (), (new,))) == nothing
    moving = "Nothing needs you. 1 deployment in progress."
    assert text(ProjectState((running,), (), (), ())) == moving
    findings = "cart has failed and not succeeded since. Piped tokyo is offline."
    assert text(ProjectState((running,), (failed, again), (), (offline,))) == findings
    assert text(ProjectState((), (failed, other), (), (offline, offline))) == (
        "cart and shop have failed and not succeeded since. 2 pipeds are offline."
    )
    # What was repaired needs nobody.
    assert text(ProjectState((), (failed,), (), (), frozenset("f"))) == nothing
    drifted = Application(id="a", sync_state=ApplicationSyncState(status=OUT_OF_SYNC))
    deploying = Application(id="b", sync_state=drifted.sync_state, deploying=True)
    drift = "1 application is out of sync or invalid."
    assert text(ProjectState((running,), (), (drifted, deploying), ())) == drift

    def waiting(*approvers: str) -> ProjectState:
        stage = make_stage(
            "s", "WAIT_APPROVAL", status=pb.STAGE_RUNNING, authorized_operators=approvers
        )
        unfinished = make_deployment(
            stage, id="w", application_name="cart", status=pb.DEPLOYMENT_RUNNING
        )
        return ProjectState((unfinished,), (failed,) if not approvers else (), (), ())

    mine = "cart waits for your approval. cart has failed and not succeeded since."
    assert text(waiting()) == mine
    assert text(waiting("bob")) == "Nothing needs you. 1 deployment waits for somebody else."


def test_a_row_says_why_it_is_there(
    noon: datetime,
    start: int,
    make_stage: Callable[..., PipelineStage],
    make_deployment: Callable[..., Deployment],
) -> None:
    stage = make_stage(
        "s", "ANALYSIS", status=pb.STAGE_FAILURE, status_reason="the error rate was 12%"
    )
    failed = make_deployment(stage, id="f", status=pb.DEPLOYMENT_FAILURE)
    drifted = Application(
        id="a",
        sync_state=ApplicationSyncState(status=OUT_OF_SYNC, short_reason="1 manifest differs"),
    )
    lost = [Piped(id=id, name=id, status=Piped.OFFLINE, started_at=1) for id in ("tokyo", "osaka")]
    state = ProjectState((), (failed,), (drifted,), lost, last_reports={"tokyo": start})
    shown = tiles(state, noon)
    assert shown["failed"].notes == {"f": "ANALYSIS failed: the error rate was 12%."}
    assert shown["different"].notes == {"a": "1 manifest differs."}
    seen = shown["offline"].seen
    assert {id: at and at.relative for id, at in seen.items()} == {
        "tokyo": "10 min ago",
        "osaka": None,
    }


def test_what_the_user_can_decide_comes_first(
    noon: datetime, make_deployment: Callable[..., Deployment]
) -> None:
    def waiting(id: str, *approvers: str) -> Deployment:
        stage = PipelineStage(
            id="s", name="WAIT_APPROVAL", status=pb.STAGE_RUNNING, authorized_operators=approvers
        )
        return make_deployment(stage, id=id, status=pb.DEPLOYMENT_RUNNING)

    others = [waiting(f"o{n}", "bob") for n in range(6)]
    running = make_deployment(id="r", status=pb.DEPLOYMENT_RUNNING)
    state = ProjectState((*others, waiting("mine", "ann", "bob"), running), (), (), ())
    shown = tiles(state, noon)
    assert (shown["waiting"].count, shown["waiting"].note) == (7, "1 for you")
    assert [row.id for row in shown["waiting"].deployments][:2] == ["mine", "o0"]
    assert shown["waiting"].is_cut
    assert shown["waiting"].decidable == {"mine"}
    assert [row.id for row in shown["running"].deployments] == ["r"]


def test_the_rows_of_a_tile_have_an_order(
    noon: datetime, start: int, make_deployment: Callable[..., Deployment]
) -> None:
    def deployment(id: str, created_at: int, *stages: PipelineStage) -> Deployment:
        status = pb.DEPLOYMENT_RUNNING
        return make_deployment(*stages, id=id, created_at=created_at, status=status)

    approval = PipelineStage(id="s", name="WAIT_APPROVAL", status=pb.STAGE_RUNNING)
    build = PipelineStage(id="a", name="BUILD", status=pb.STAGE_SUCCESS, visible=True)
    test = PipelineStage(id="b", name="TEST", requires=["a"], status=pb.STAGE_RUNNING, visible=True)
    running = [deployment("r2", start + 2, build, test)]
    running += [deployment(f"r{n}", start + n) for n in (1, 3)]
    waiting = [deployment(f"w{n}", start + n, approval) for n in (2, 1, 3)]
    states = (("web", OUT_OF_SYNC), ("API", OUT_OF_SYNC), ("mail", INVALID_CONFIG))
    different = [
        Application(id=name, name=name, sync_state=ApplicationSyncState(status=status))
        for name, status in states
    ]
    shown = tiles(ProjectState((*running, *waiting), (), different, ()), noon)
    # Who waits longest comes first, and what began last; what is invalid, then by name.
    assert [row.id for row in shown["waiting"].deployments] == ["w1", "w2", "w3"]
    assert [row.id for row in shown["running"].deployments] == ["r3", "r2", "r1"]
    # How far a deployment is, once it has stages.
    assert shown["running"].stages == {"r3": "", "r2": "Stage 2 of 2", "r1": ""}
    assert [row.name for row in shown["different"].applications] == ["mail", "API", "web"]


def test_drift_and_pipeds(noon: datetime) -> None:
    drifted = Application(id="a", sync_state=ApplicationSyncState(status=OUT_OF_SYNC))
    deploying = Application(id="b", sync_state=drifted.sync_state, deploying=True)
    pipeds = [
        Piped(id="p1", name="tokyo", status=Piped.OFFLINE, started_at=1),
        Piped(id="p2", name="osaka", status=Piped.ONLINE),
        Piped(id="p4", name="nara", status=Piped.OFFLINE),
        Piped(id="p3", name="kyoto", status=Piped.OFFLINE, disabled=True),
    ]
    shown = tiles(ProjectState((), (), (drifted, deploying), pipeds), noon)
    assert [row.id for row in shown["different"].applications] == ["a"]
    assert [piped.name for piped in shown["offline"].pipeds] == ["tokyo"]
    assert (shown["offline"].count, shown["offline"].title) == (1, "piped offline")


@pytest.mark.parametrize(
    ("states", "text"),
    [
        pytest.param("", "No piped is registered yet.", id="no piped"),
        pytest.param("d", "No piped is enabled.", id="only a disabled one"),
        pytest.param("nd", "No piped is started yet.", id="only one that was never started"),
        pytest.param("od", "Every piped is online.", id="all online"),
        pytest.param(
            "on", "No piped that was started is offline. 1 piped is not started yet.", id="one new"
        ),
        pytest.param(
            "onn", "No piped that was started is offline. 2 pipeds are not started yet.", id="two"
        ),
    ],
)
def test_without_an_offline_piped_the_tile_says_how_the_pipeds_are(
    states: str, text: str, noon: datetime
) -> None:
    pipeds = [
        Piped(
            status=Piped.ONLINE if state == "o" else Piped.OFFLINE,
            started_at=int(state == "o"),
            disabled=state == "d",
        )
        for state in states
    ]
    assert tiles(ProjectState((), (), (), pipeds), noon)["offline"].nothing == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["cart"], "cart waits for your approval"),
        (["cart", "shop"], "cart and shop wait for your approval"),
        (list("abcdefg"), "a, b, c, d, e and 2 more wait for your approval"),
    ],
)
def test_a_notification_names_what_waits(
    names: list[str], text: str, make_stage: Callable, make_deployment: Callable
) -> None:
    stage = make_stage("s1", "WAIT_APPROVAL", status=pb.STAGE_RUNNING)
    waiting = [make_deployment(stage, application_name=name, status=2) for name in names]
    assert waiting_text(waiting, "ann") == text


def test_a_deployment_does_not_go_on_while_its_piped_is_offline(
    noon: datetime, make_deployment: Callable[..., Deployment]
) -> None:
    moving = [
        make_deployment(id=piped_id, piped_id=piped_id, status=pb.DEPLOYMENT_RUNNING)
        for piped_id in ("lost", "online", "unknown")
    ]
    pipeds = (
        Piped(id="lost", name="lost", status=Piped.OFFLINE, started_at=1),
        Piped(id="online", name="online", status=Piped.ONLINE, started_at=1),
    )
    assert tiles(ProjectState(moving, (), (), pipeds), noon)["running"].stuck == {"lost"}
