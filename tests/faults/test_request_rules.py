# SPDX-License-Identifier: Apache-2.0
"""The rules about saved settings and plan previews find what is wrong, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from faults.applications import FaultyApplication, Platform, Shape
from faults.evidence import Evidence, Requested
from faults.report_rules import commands
from faults.request_rules import edits, previews
from pipecd.model.deployment import SyncStrategy
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


LOST = "nothing acknowledged is lost: web has the provider"
SAVED: dict[str, tuple[Sequence[Requested], str, str]] = {
    "the last one": ([saved("v1", 1, 2), saved("v2", 3, 4)], "v2", ""),
    "one that was replaced": ([saved("v1", 1, 2), saved("v2", 3, 4)], "v1", "v1, which was replaced"),
    "what was there before": ([saved("v1", 1, 2)], "p", "p, which was replaced"),
    "the first of two at once": ([saved("v1", 1, 4), saved("v2", 3, 4)], "v1", ""),
    "one without an answer": ([saved("v1", 1), saved("v2", 3, 4)], "v1", ""),
    "what was there before one without an answer": ([saved("v1", 1)], "p", ""),
    "what was there before, and one was acknowledged": ([saved("v1", 1), saved("v2", 3, 4)], "p", "p, which was replaced"),
}  # fmt: skip


@pytest.mark.parametrize(("requests", "provider", "problem"), SAVED.values(), ids=SAVED)
def test_what_an_application_may_have_in_the_end(
    requests: Sequence[Requested], provider: str, problem: str
) -> None:
    found = edits(Evidence(requests=requests, providers={"web": provider}))
    assert [str(each) for each in found] == ([f"{LOST} {problem}"] if problem else [])


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
