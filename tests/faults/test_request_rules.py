# SPDX-License-Identifier: Apache-2.0
"""The rules about saved settings and plan previews find what is wrong, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from faults.applications import FaultyApplication, Platform, Shape
from faults.ending import Head, unstored_settings
from faults.evidence import Evidence, Requested
from faults.report_rules import commands
from faults.request_rules import edits, previews, running_settings
from faults.sample_deployments import deployment
from faults.truth import TruthLine
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.proto.model import command_pb2, common_pb2
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
    PluginPlanPreviewResult,
)


def saved(value: str, at: float, answered_at: float | None = None) -> Requested:
    """A setting that was saved; without a time of the answer it was not acknowledged."""
    if answered_at is None:
        return Requested("edit", "web", value=value, at=at)
    return Requested("edit", "web", id="a", value=value, at=at, answered_at=answered_at)


LOST = "nothing acknowledged is lost: web has the setting"
SAVED: dict[str, tuple[Sequence[Requested], str, str]] = {
    "the last one": ([saved("v1", 1, 2), saved("v2", 3, 4)], "v2", ""),
    "one that was replaced": ([saved("v1", 1, 2), saved("v2", 3, 4)], "v1", "v1, which was replaced"),
    "what was there before": ([saved("v1", 1, 2)], "p", "p, which was replaced"),
    "the first of two at once": ([saved("v1", 1, 4), saved("v2", 3, 4)], "v1", ""),
    "one without an answer": ([saved("v1", 1), saved("v2", 3, 4)], "v1", ""),
    "what was there before one without an answer": ([saved("v1", 1)], "p", ""),
    "what was there before, and one was acknowledged": ([saved("v1", 1), saved("v2", 3, 4)], "p", "p, which was replaced"),
}  # fmt: skip


@pytest.mark.parametrize(("requests", "setting", "problem"), SAVED.values(), ids=SAVED)
def test_what_an_application_may_have_in_the_end(
    requests: Sequence[Requested], setting: str, problem: str
) -> None:
    found = edits(Evidence(requests=requests, settings={"web": setting}))
    assert [str(each) for each in found] == ([f"{LOST} {problem}"] if problem else [])


def created(at: float, config: str) -> Evidence:
    """A deployment with a configuration file, after blue.yaml and green.yaml were saved."""
    each = deployment("d", DeploymentStatus.SUCCESS)
    each.git_path.config_filename = config
    requests = [saved("p1 blue.yaml", 100, 101), saved("p2 green.yaml", 200, 201)]
    return Evidence(deployments=[each], requests=requests, reported_created={"d": at})


USED: dict[str, tuple[Evidence, bool]] = {
    "the last file": (created(300, "green.yaml"), True),
    "the file before, a while later": (created(300, "blue.yaml"), False),
    "the first one, a while later": (created(190, "app.yaml"), False),
    "the file before, for a moment": (created(210, "blue.yaml"), True),
    "the first one, before anything was saved": (created(90, "app.yaml"), True),
    "the file that was saved a moment ago": (created(201, "green.yaml"), True),
    "a file before it was saved": (created(190, "green.yaml"), False),
}


@pytest.mark.parametrize(("evidence", "is_right"), USED.values(), ids=USED)
def test_which_file_a_deployment_may_come_from(evidence: Evidence, is_right: bool) -> None:
    text = "which was replaced before it was created"
    assert [text in str(each) for each in edits(evidence)] == ([] if is_right else [True])


def started(what: str, setting: str, *, label: str = "0") -> Evidence:
    """What a target of revision 7 was given."""
    line = TruthLine(what, "web", "d", "new", "9", 1, label, setting)
    return Evidence(truth=[line], revisions={("web", "new"): "7"})


def in_cluster(setting: str, status: DeploymentStatus = DeploymentStatus.SUCCESS) -> Evidence:
    return Evidence(deployments=[deployment("d", status)], cluster_settings={"web": ("7", setting)})


RUNNING: dict[str, tuple[Evidence, str]] = {
    "a script with its setting": (started("begin", "v7"), ""),
    "a script with another one": (started("begin", "v6"), "begin of web has v6 at revision 7"),
    "a program with another one": (started("start", "v6"), "start of web has v6 at revision 7"),
    "Terraform with its setting": (started("apply", "v5", label="5"), ""),
    "Terraform with another one": (
        started("apply", "v6", label="7"),
        "apply of web has v6 at revision 7",
    ),
    "a target that was given none": (started("begin", ""), ""),
    "a commit that is not known any more": (replace(started("begin", "v6"), revisions={}), ""),
    "the cluster with its setting": (in_cluster("v7"), ""),
    "the cluster with another one": (in_cluster("v6"), "web has v6 at revision 7"),
    "the cluster after a failure": (in_cluster("v6", DeploymentStatus.FAILURE), ""),
}


@pytest.mark.parametrize(("evidence", "problem"), RUNNING.values(), ids=RUNNING)
def test_what_runs_has_the_setting_of_its_revision(evidence: Evidence, problem: str) -> None:
    rule = "a saved setting is stored and used"
    expected = [f"{rule}: {problem}"] if problem else []
    assert [str(each) for each in running_settings(evidence)] == expected


def head(**changes: Any) -> Head:
    return replace(Head("content", nonce="7"), **changes)


STORED: dict[str, tuple[Head, str, str, bool]] = {
    "both of the head": (head(), "v7 of app.yaml", "v7", True),
    "the description of an earlier revision": (head(), "v6 of app.yaml", "v7", False),
    "the description of another file": (head(), "v7 of blue.yaml", "v7", False),
    "the label of an earlier revision": (head(), "v7 of app.yaml", "v6", False),
    "a broken file": (head(is_broken=True), "v6 of app.yaml", "v6", True),
    "a head that is not known": (head(nonce=""), "v6 of app.yaml", "v6", True),
}


@pytest.mark.parametrize(("at", "description", "label", "is_right"), STORED.values(), ids=STORED)
def test_what_is_stored_of_the_file_of_an_application(
    at: Head, description: str, label: str, is_right: bool
) -> None:
    application = FaultyApplication("web", Platform.PROCESS, 0)
    left = unstored_settings(
        application, at, config="app.yaml", description=description, labels={"setting": label}
    )
    assert [each.rule for each in left] == (
        [] if is_right else ["a saved setting is stored and used"]
    )


def result(
    details: str = "", *, name: str = "web", error: str = "", no_change: bool = False
) -> ApplicationPlanPreviewResult:
    return ApplicationPlanPreviewResult(
        application_name=name,
        sync_strategy=common_pb2.SyncStrategy.ValueType(SyncStrategy.PIPELINE),
        error=error,
        no_change=no_change,
        plugin_plan_results=[PluginPlanPreviewResult(plan_details=details.encode())],
    )


def previewed(
    *results: ApplicationPlanPreviewResult,
    platform: Platform = Platform.TERRAFORM,
    shape: Shape = Shape.PLAIN,
    piped: str = "p",
) -> Evidence:
    """A preview of revision 7, as the piped of the application or another one answered it."""
    command = Command(id="c", piped_id=piped, status=command_pb2.COMMAND_SUCCEEDED)
    return Evidence(
        applications=[FaultyApplication("web", platform, 0, shape)],
        piped_ids=["p", "q"],
        requests=[Requested("preview", "web", id="c", value="7", at=10)],
        commands={"c": command},
        previews={"c": PlanPreviewCommandResult(results=results)},
    )


QUICK = result()
QUICK.sync_strategy = common_pb2.SyncStrategy.ValueType(SyncStrategy.QUICK_SYNC)
PREVIEWED: dict[str, tuple[Evidence, str]] = {
    "what changes": (previewed(result("+ 7")), ""),
    "also what else changes": (previewed(result("+ 7"), result(name="shop")), ""),
    "an error of the application": (previewed(result(error="no Terraform")), ""),
    "nothing": (previewed(), "names web 0 times"),
    "another application": (previewed(result("+ 7", name="shop")), "names web 0 times"),
    "the application twice": (previewed(result("+ 7"), result("+ 7")), "names web 2 times"),
    "another revision": (previewed(result("+ 6")), "does not say that 7 changes"),
    "no change": (previewed(result(no_change=True)), "says that nothing changes"),
    "the changed file of a process": (previewed(result("~ run.sh"), platform=Platform.PROCESS), ""),
    "another file of a process": (
        previewed(result("~ other"), platform=Platform.PROCESS),
        "does not say that run.sh changes",
    ),
    "the pipeline of scripts": (previewed(result(), platform=Platform.SCRIPT), ""),
    "a quick sync instead of the pipeline": (
        previewed(QUICK, platform=Platform.SCRIPT),
        "plans QUICK_SYNC",
    ),
    "nothing, by a piped without the application": (previewed(piped="q"), ""),
    "the application, by another piped": (
        previewed(result("+ 7"), piped="q"),
        "names web, which another piped deploys",
    ),
    "nothing of an application that commits do not deploy": (previewed(shape=Shape.FOLLOWER), ""),
    "nothing of an application that was disabled": (
        replace(
            previewed(),
            requests=[*previewed().requests, Requested("disable", "web", at=9)],
        ),
        "",
    ),
    "no result": (replace(previewed(), previews={}), "has no result"),
}


@pytest.mark.parametrize(("evidence", "problem"), PREVIEWED.values(), ids=PREVIEWED)
def test_what_a_preview_has_to_say(evidence: Evidence, problem: str) -> None:
    text = f"a preview says what changes: preview c {problem}"
    assert [str(each) for each in previews(evidence)] == ([text] if problem else [])


@pytest.mark.parametrize("error", ["", "the branch is gone"])
def test_a_preview_that_fails_has_a_reason(error: str) -> None:
    evidence = previewed()
    evidence.commands["c"].status = command_pb2.COMMAND_FAILED
    evidence.previews["c"].error = error
    problem = "a command is carried out once: preview c failed without a reason"
    assert [str(each) for each in commands(evidence)] == ([] if error else [problem])
    assert [*previews(evidence)] == []
