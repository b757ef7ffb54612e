# SPDX-License-Identifier: Apache-2.0
"""What has to be true of an application after healing, and what explains that its head was refused."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from faults.applications import FaultyApplication, Platform, Shape
from faults.ending import Head, SyncState, may_be_refused, unsettled
from faults.evidence import InjectedFault, Requested
from faults.sample_deployments import deployment
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus as D
from pipecd.proto.model.deployment_pb2 import Deployment

CANCEL = Requested("cancel", "web", id="c", deployment="d")
FOLLOWER = FaultyApplication("shop", Platform.SCRIPT, 0, Shape.FOLLOWER)
SCRIPTS = FaultyApplication("web", Platform.SCRIPT, 0)
CLUSTER = FaultyApplication("web", Platform.KUBERNETES, 0)
CONTENTS = {"new": "2", "copy": "2", "old": "1", "ancient": "0"}
SYNCED, INVALID = SyncState(SyncStatus.SYNCED), SyncState(SyncStatus.INVALID_CONFIG, "line 3")
Ending = tuple[FaultyApplication, Head, Sequence[Deployment], SyncState, str]
ENDINGS: dict[str, Ending] = {
    "the head is deployed": (SCRIPTS, Head("2", running="2"), [deployment()], SYNCED, ""),
    "a commit with the same content is deployed": (
        SCRIPTS, Head("2", running="2"), [deployment(commit="copy")], SYNCED, "",
    ),
    "a head that fails is refused with a reason": (
        SCRIPTS, Head("2", running="2", fails=True), [deployment(status=D.FAILURE, reason="exit 1")], SYNCED, "",
    ),
    "a head that fails is refused, and what ran before it runs": (
        SCRIPTS, Head("2", running="1", fails=True),
        [deployment("o", commit="old"), deployment(status=D.FAILURE, reason="exit 1")], SYNCED, "",
    ),
    "an application that only a chain deploys": (
        FOLLOWER, Head("2", running="1"), [deployment(commit="old", application="shop")], SYNCED, "",
    ),
    "a user cancels the deployment of the head": (
        SCRIPTS, Head("2", running="2"), [deployment("cancelled", D.CANCELLED, reason="by ann")], SYNCED, "",
    ),
    "the head is refused without a reason": (
        SCRIPTS, Head("2", running="2", fails=True), [deployment(status=D.FAILURE)], SYNCED,
        "no push is lost: web was refused at the head without a reason",
    ),
    "a good head fails": (
        SCRIPTS, Head("2", running="2"), [deployment(status=D.FAILURE, reason="unavailable")], SYNCED,
        "no push is lost: web failed at the head, which is good: unavailable",
    ),
    "a sync of a good head fails after its deployment": (
        SCRIPTS, Head("2", running="2"), [deployment("o"), deployment(status=D.FAILURE, reason="unavailable")], SYNCED,
        "no push is lost: web failed at the head, which is good: unavailable",
    ),
    "what was replaced long ago runs after the head is refused": (
        SCRIPTS, Head("2", running="0", fails=True),
        [deployment("a", commit="ancient"), deployment("o", commit="old"), deployment(status=D.FAILURE, reason="exit 1")],
        SYNCED,
        "the head runs in the end: web runs what was replaced before the head was refused",
    ),
    "a head that fails is reported as deployed": (
        SCRIPTS, Head("2", running="2", fails=True), [deployment()], SYNCED,
        "a failed stage fails its deployment: web succeeded at a head that fails",
    ),
    "the push of the head is lost": (
        SCRIPTS, Head("2", running="1"), [deployment(commit="old")], SYNCED,
        "no push is lost: web was never deployed at the head",
    ),
    "an older commit runs after the head": (
        SCRIPTS, Head("2", running="1"), [deployment()], SYNCED,
        "the head runs in the end: web does not run the head although its deployment succeeded",
    ),
    "the last script has not ended": (
        SCRIPTS, Head("2", running="2", is_running_ended=False), [deployment()], SYNCED,
        "the head runs in the end: web has a last script that has not ended",
    ),
    "a deployment is stuck": (
        SCRIPTS, Head("2"), [deployment(status=D.PENDING)], SYNCED,
        "nothing is stuck: d of web is PENDING",
    ),
    "a broken file is reported": (SCRIPTS, Head("3", is_broken=True), [deployment()], INVALID, ""),
    "a broken file is not reported": (
        SCRIPTS, Head("3", is_broken=True), [deployment()], SYNCED,
        "no push is lost: web is not reported as invalid although its file is broken",
    ),
    "a file that is right is reported": (
        SCRIPTS, Head("2", running="2"), [deployment()], INVALID,
        "the sync state is right: web is reported as invalid: line 3",
    ),
    "an application that deploys for ever": (
        SCRIPTS, Head("2", running="2"), [deployment()], SyncState(SyncStatus.DEPLOYING),
        "the sync state is right: web is still deploying according to the sync state",
    ),
    "an application whose flag is not reset": (
        SCRIPTS, Head("2", running="2"), [deployment()], SyncState(SyncStatus.SYNCED, is_deploying=True),
        "the sync state is right: web is still deploying according to the flag",
    ),
    "a cluster that runs the head and is reported as different": (
        CLUSTER, Head("2", running="2"), [deployment()], SyncState(SyncStatus.OUT_OF_SYNC, "1 differs"),
        "the sync state is right: web runs the head and is OUT_OF_SYNC: 1 differs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_the_head_is_deployed_or_refused_in_the_end(ending: Ending) -> None:
    application, head, deployments, sync, violation = ending
    left = unsettled(application, head, deployments, CONTENTS, sync=sync, explained={"cancelled"})
    assert [str(each) for each in left] == ([violation] if violation else [])


REFUSALS: dict[str, tuple[Sequence[Requested], Sequence[InjectedFault], bool]] = {
    "nothing happened": ([], [], False),
    "a user cancelled it": ([CANCEL], [], True),
    "a user cancelled another one": ([replace(CANCEL, deployment="e")], [], False),
    "its workspace was full": ([], [InjectedFault("fill_workspace", 20, 21, "p")], True),
    "its workspace was full before, and it could not start yet": ([], [InjectedFault("fill_workspace", 1, 4, "p")], True),
    "its workspace was full long after it": ([], [InjectedFault("fill_workspace", 31, 40, "p")], False),
    "the workspace of another piped was full": ([], [InjectedFault("fill_workspace", 20, 21, "q")], False),
    "its piped was killed": ([], [InjectedFault("kill_piped", 20, 21, "p")], False),
    "the database was killed": ([], [InjectedFault("kill_database", 20, 21)], False),
    "Git was away, until which it waits": ([], [InjectedFault("git_away", 20, 21)], False),
    "the repository was created again": ([], [InjectedFault("recreate_repository", 20, 21)], False),
    "the workspace, which can be made anew, was lost": ([], [InjectedFault("lose_workspace", 20, 21, "p")], False),
    "its working copy was damaged": ([], [InjectedFault("damage_workspace", 20, 20, "p")], True),
    "its plugin died twice, after which a stage runs again": ([], [InjectedFault("kill_plugin", at, at, "p") for at in (20, 22)], False),
    "its plugin died three times": ([], [InjectedFault("kill_plugin", at, at, "p") for at in (20, 22, 24)], True),
    "the plugin of another piped died three times": ([], [InjectedFault("kill_plugin", at, at, "q") for at in (20, 22, 24)], False),
    "its plugin hung": ([], [InjectedFault("hang_plugin", 20, 26, "p")], False),
    "its plugin flooded its piped": ([], [InjectedFault("flood_plugin", 20, 20, "p")], False),
    "the cluster, which it does not use, was away": ([], [InjectedFault("api_server_away", 20, 21)], False),
}  # fmt: skip


@pytest.mark.parametrize(("requests", "faults", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_only_users_and_what_is_deployed_from_or_to_explain_a_refusal(
    requests: Sequence[Requested], faults: Sequence[InjectedFault], expected: bool
) -> None:
    refused = deployment(status=D.FAILURE, reason="a reason")
    assert expected is may_be_refused(
        refused, SCRIPTS, requests=requests, faults=faults, first_seen=19, completed_at=30
    )


RECREATED, LOST = (
    InjectedFault("recreate_repository", 1, 1), InjectedFault("lose_workspace", 2, 2, "p"),
)  # fmt: skip
GONE: dict[str, tuple[Sequence[InjectedFault], bool]] = {
    "the repository has all commits": ([LOST], False),
    "piped has its copy of them": ([RECREATED], False),
    "another piped lost its copy": ([RECREATED, replace(LOST, piped="q")], False),
    "neither has them any more": ([RECREATED, LOST], True),
    "both were lost later": ([replace(RECREATED, begin=140), replace(LOST, begin=150)], False),
}


@pytest.mark.parametrize(("faults", "expected"), GONE.values(), ids=GONE)
def test_a_commit_that_is_gone_explains_a_refusal_if_nobody_has_it(
    faults: Sequence[InjectedFault], expected: bool
) -> None:
    refused = deployment(status=D.FAILURE, reason="commit 1 is not in repository 'site'")
    assert expected is may_be_refused(
        refused, SCRIPTS, requests=[], faults=faults, first_seen=100, completed_at=130
    )
