# SPDX-License-Identifier: Apache-2.0
"""The timeline of a deployment, and what it changes."""

from collections.abc import Callable
from datetime import datetime

import pytest

from pipecd.controlplane.console.deployment_changes import deployment_changes
from pipecd.controlplane.console.deployment_timeline import deployment_timeline
from pipecd.proto.model import command_pb2 as commands
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

Build = Callable[..., Deployment]
BuildStage = Callable[..., PipelineStage]


def test_every_step_says_who_and_why(
    make_deployment: Build, make_stage: BuildStage, start: int, noon: datetime
) -> None:
    deployment = make_deployment(
        make_stage("s1", "K8S_SYNC", status=pb.STAGE_SUCCESS, completed_at=start + 100),
        make_stage(
            "s2",
            "WAIT_APPROVAL",
            requires=["s1"],
            status=pb.STAGE_SUCCESS,
            completed_at=start + 300,
            metadata={"pipecd/stage-approved-users": "ann, bob"},
        ),
        make_stage(
            "s3",
            "ANALYSIS",
            requires=["s2"],
            status=pb.STAGE_FAILURE,
            completed_at=start + 400,
            status_reason="too many errors",
        ),
        make_stage("s4", "K8S_PRIMARY_ROLLOUT", requires=["s3"]),
        status=pb.DEPLOYMENT_FAILURE,
        status_reason="failed while executing stage s3",
        completed_at=start + 400,
        summary="the image changed",
    )
    approval = Command(
        type=Command.APPROVE_STAGE,
        stage_id="s2",
        commander="ann",
        created_at=start + 200,
        status=commands.COMMAND_SUCCEEDED,
    )
    steps = deployment_timeline(deployment, [approval], noon)
    assert [(step.what, step.who, step.why) for step in steps] == [
        ("Triggered", "ann", "Commit “Retry card tokens once”."),
        ("Planned", "", "The image changed."),
        ("K8S_SYNC", "", ""),
        ("WAIT_APPROVAL", "ann, bob", ""),
        ("Approve WAIT_APPROVAL", "ann", ""),
        ("ANALYSIS", "", "Too many errors."),
        ("Failed", "", "Failed while executing stage ANALYSIS."),
    ]
    bars = [(step.bar.start, step.bar.width) for step in steps if step.bar]
    assert bars == [(0, 250), (250, 500), (750, 250)]


def test_a_stage_that_waits_says_who_has_approved_so_far(
    make_deployment: Build, make_stage: BuildStage, start: int, noon: datetime
) -> None:
    waiting = make_stage(
        "s1",
        "WAIT_APPROVAL",
        status=pb.STAGE_RUNNING,
        completed_at=start,
        available_operation=pb.MANUAL_OPERATION_APPROVE,
        metadata={"pipecd/stage-approved-users": "ann"},
    )
    deployment = make_deployment(waiting, status=pb.DEPLOYMENT_RUNNING)
    step = deployment_timeline(deployment, [], noon)[-1]
    assert (step.badge.text, step.who, step.why) == (
        "Waiting for approval",
        "",
        "Approved by ann so far.",
    )


@pytest.mark.parametrize(
    ("command", "what", "why"),
    [
        pytest.param(
            Command(type=Command.CANCEL_DEPLOYMENT, status=commands.COMMAND_SUCCEEDED),
            "Cancel", "", id="cancel",
        ),
        pytest.param(
            Command(
                type=Command.CANCEL_DEPLOYMENT,
                status=commands.COMMAND_NOT_HANDLED_YET,
                cancel_deployment=Command.CancelDeployment(force_rollback=True),
            ),
            "Cancel and roll back", "The piped has not handled it yet.", id="with rollback",
        ),
        pytest.param(
            Command(
                type=Command.CANCEL_DEPLOYMENT,
                status=commands.COMMAND_TIMEOUT,
                cancel_deployment=Command.CancelDeployment(force_no_rollback=True),
            ),
            "Cancel without rollback", "The piped did not handle it in time.", id="without",
        ),
        pytest.param(
            Command(
                type=Command.SKIP_STAGE,
                stage_id="s1",
                status=commands.COMMAND_FAILED,
                metadata={"Reason": "the stage has ended"},
            ),
            "Skip ANALYSIS", "Failed: the stage has ended.", id="skip",
        ),
        pytest.param(
            Command(
                type=Command.SKIP_STAGE,
                stage_id="s1",
                status=commands.COMMAND_SUCCEEDED,
                metadata={"RejectionReason": "not on a Friday"},
            ),
            "Reject ANALYSIS", "“not on a Friday”", id="reject",
        ),
    ],
)  # fmt: skip
def test_what_users_requested(
    *,
    command: Command,
    what: str,
    why: str,
    make_deployment: Build,
    make_stage: BuildStage,
    start: int,
    noon: datetime,
) -> None:
    command.commander, command.created_at = "cleo", start + 5
    deployment = make_deployment(make_stage("s1", "ANALYSIS"))
    step = deployment_timeline(deployment, [command], noon)[-1]
    assert (step.what, step.who, step.why) == (what, "cleo", why)


def version(name: str, text: str, url: str = "") -> ArtifactVersion:
    return ArtifactVersion(kind=ArtifactVersion.CONTAINER_IMAGE, name=name, version=text, url=url)


def test_versions_are_compared_with_those_that_ran_before(make_deployment: Build) -> None:
    before = make_deployment(
        id="d0", versions=[version("web", "v1"), version("old", "v3"), version("log", "v9")]
    )
    after = make_deployment(
        versions=[
            version("log", "v9"),
            version("web", "v2", "javascript:alert(1)"),
            version("job", "v1", "https://registry.example/job"),
            version("job", "v1"),
            version("none", "unknown"),
        ]
    )
    changes = deployment_changes(after, before)
    assert [(each.name, each.before, each.after, each.url) for each in changes.versions] == [
        ("web", "v1", "v2", ""),
        ("job", "", "v1", "https://registry.example/job"),
        ("old", "v3", "", ""),
        ("log", "v9", "v9", ""),
    ]
    assert [each.name for each in changes.changed] == ["web", "job", "old"]
    assert changes.previous_id == "d0"


def test_what_is_not_planned_yet_removes_nothing(make_deployment: Build) -> None:
    before = make_deployment(id="d0", versions=[version("web", "v1")])
    assert deployment_changes(make_deployment(), before).versions == ()
    assert deployment_changes(before, None).previous_id == ""


def test_the_first_deployment_is_one_that_surely_has_none_before(make_deployment: Build) -> None:
    first = make_deployment(versions=[version("web", "v1")])
    assert deployment_changes(first, None).is_first
    assert [each.name for each in deployment_changes(first, None).changed] == ["web"]
    denied = deployment_changes(first, None, is_denied=True)
    assert not denied.is_first
    assert denied.changed == ()
    assert "do not allow listing" in denied.unknown
    forgotten = deployment_changes(
        make_deployment(running_commit_hash="9c01ab2f" * 5, versions=[version("web", "v1")]), None
    )
    assert not forgotten.is_first
    assert forgotten.unknown


def test_a_request_is_between_its_stage_and_what_it_lets_start(
    make_deployment: Build, make_stage: BuildStage, start: int, noon: datetime
) -> None:
    done = {"status": pb.STAGE_SUCCESS, "completed_at": start}
    deployment = make_deployment(
        make_stage("s1", "WAIT_APPROVAL", **done),
        make_stage("s2", "SCRIPT_RUN", requires=["s1"], desc="Release", **done),
        status=pb.DEPLOYMENT_SUCCESS,
        completed_at=start,
    )
    approval = Command(
        type=Command.APPROVE_STAGE,
        stage_id="s1",
        created_at=start,
        status=commands.COMMAND_SUCCEEDED,
    )
    steps = deployment_timeline(deployment, [approval], noon)
    assert [(step.what, step.desc) for step in steps[2:]] == [
        ("WAIT_APPROVAL", ""),
        ("Approve WAIT_APPROVAL", ""),
        ("SCRIPT_RUN", "Release"),
        ("Succeeded", ""),
    ]


@pytest.mark.parametrize(
    ("seconds", "earlier", "usual", "is_slow"),
    [
        pytest.param(20, (8, 10, 60), "10s", False, id="the median"),
        pytest.param(21, (8, 10, 60), "10s", True, id="more than twice as long"),
        pytest.param(9, (1, 1, 1), "1s", False, id="a few seconds more say nothing"),
        pytest.param(100, (10, 10), "", False, id="too few to compare with"),
    ],
)
def test_stages_are_compared_with_those_of_earlier_deployments(
    *,
    seconds: int,
    earlier: tuple[int, ...],
    usual: str,
    is_slow: bool,
    make_deployment: Build,
    make_stage: BuildStage,
    start: int,
    noon: datetime,
) -> None:
    def deployment(taken: int) -> Deployment:
        # Of two stages with the same name each is compared with its own.
        first, end = start + 1, start + 1 + taken
        stages = [
            make_stage("a", "WAIT", status=pb.STAGE_SUCCESS, completed_at=first),
            make_stage("b", "WAIT", requires=["a"], status=pb.STAGE_SUCCESS, completed_at=end),
            make_stage(
                "c", "WAIT_APPROVAL", requires=["b"], status=pb.STAGE_SUCCESS, completed_at=end
            ),
        ]
        return make_deployment(*stages, status=pb.DEPLOYMENT_SUCCESS, completed_at=end)

    steps = deployment_timeline(deployment(seconds), [], noon, [*map(deployment, earlier)])
    by_stage = {step.stage_id: step for step in steps}
    assert (by_stage["b"].usual, by_stage["b"].is_slow) == (usual, is_slow)
    # How long people take to approve is no measure.
    assert by_stage["c"].usual == ""
