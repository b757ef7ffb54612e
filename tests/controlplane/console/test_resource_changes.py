# SPDX-License-Identifier: Apache-2.0
"""What a commit changes, by deploy target and resource."""

from datetime import UTC, datetime, timedelta

import pytest

from pipecd.controlplane.console.diff_view import ChangeCounts
from pipecd.controlplane.console.resource_changes import (
    deployment_resource_changes,
    missing_changes,
    resource_changes,
)
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.planpreview_pb2 import PluginPlanPreviewResult
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges

NOW = datetime(2026, 8, 22, 12, tzinfo=UTC)
MANIFESTS = b"""\
--- Last Deploy
+++ Head Commit

- 1. name="old", kind="ConfigMap", namespace="shop", apiVersion="v1"

+ 2. name="web", kind="Service", namespace="shop", apiVersion="v1"

# 3. name="web", kind="Deployment", namespace="shop", apiVersion="apps/v1"

  spec:
    #spec.replicas
-   replicas: 5
+   replicas: 2

"""


def result(details: bytes = MANIFESTS, **fields: str) -> PluginPlanPreviewResult:
    return PluginPlanPreviewResult(
        **{"plugin_name": "kubernetes", "deploy_target": "dev", "diff_language": "diff", **fields},
        plan_summary=b"1 added manifests, 1 changed manifests, 1 deleted manifests",
        plan_details=details,
    )


async def test_resources_are_counted_over_all_targets_and_have_addresses_of_their_own() -> None:
    view = await resource_changes([result(), result(deploy_target="prod")])
    assert [target.name for target in view.targets] == ["dev · kubernetes", "prod · kubernetes"]
    assert view.counts == ChangeCounts(added=2, deleted=2, changed=2)
    anchors = [section.anchor for target in view.targets for section in target.diff.sections]
    assert len(set(anchors)) == 6


@pytest.mark.parametrize(
    ("summary", "shown"),
    [
        pytest.param(
            "1 added manifests, 2 changed manifests, 1 deleted manifests",
            "1 manifest added, 2 changed, 1 deleted.",
            id="all three",
        ),
        pytest.param(
            "0 added manifests, 2 changed manifests, 0 deleted manifests",
            "2 manifests changed.",
            id="only changed ones",
        ),
        pytest.param("2 to add, 0 to change, 1 to destroy", None, id="of another plugin"),
    ],
)
async def test_the_summary_of_manifests_counts_in_words(summary: str, shown: str | None) -> None:
    reported = result()
    reported.plan_summary = summary.encode()
    (target,) = (await resource_changes([reported])).targets
    assert target.summary == (shown or f"{summary}.")


async def test_many_targets_share_the_lines_of_the_page() -> None:
    lines = b"+ line\n" * 3000
    view = await resource_changes([result(lines) for _ in range(120)])
    assert (len(view.targets), view.omitted_targets) == (100, 20)
    assert view.targets[0].diff.omitted == "2,800 more lines are not shown"


@pytest.mark.parametrize(
    ("language", "had_started", "is_late"),
    [
        pytest.param("hcl", True, True, id="a plan beside the stages lacks what they applied"),
        pytest.param("hcl", False, False, id="a plan before the stages"),
        pytest.param("diff", True, False, id="a comparison of two commits is never late"),
    ],
)
async def test_a_plan_that_was_made_late_says_so(
    language: str, had_started: bool, is_late: bool
) -> None:
    changes = DeploymentChanges(
        results=[result(diff_language=language)], stages_had_started=had_started, created_at=1
    )
    assert (await deployment_resource_changes(changes, NOW)).is_late is is_late


@pytest.mark.parametrize(
    ("status", "ended", "own", "text", "is_expected"),
    [
        pytest.param("PENDING", 0, True, "once the deployment is planned", True, id="pending"),
        pytest.param("RUNNING", 0, True, "has not reported yet", True, id="running"),
        pytest.param("SUCCESS", 60, True, "has not reported yet", True, id="just ended"),
        pytest.param("SUCCESS", 600, True, "has not reported which", False, id="ended long ago"),
        pytest.param("RUNNING", 0, False, "does not report", False, id="a piped of upstream"),
    ],
)
def test_missing_changes_have_a_reason(
    status: str, ended: int, own: bool, text: str, is_expected: bool
) -> None:
    deployment = Deployment(
        status=pb.DeploymentStatus.ValueType(DeploymentStatus[status]),
        completed_at=to_unix(NOW - timedelta(seconds=ended)) if ended else 0,
    )
    view = missing_changes(deployment, has_own_piped=own, now=NOW)
    assert text in view.missing
    assert view.is_expected is is_expected
