# SPDX-License-Identifier: Apache-2.0
"""What the quickstart prints, and what it does without."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipecd.proto.model import deployment_pb2 as pb
from pipecd.quickstart.datadir import DataDir
from pipecd.quickstart.terminal import Terminal, failure_lines, seconds_taken


def deployment(status: "pb.DeploymentStatus.ValueType") -> pb.Deployment:
    stages = [
        pb.PipelineStage(name="ROLLOUT", status=pb.STAGE_SUCCESS, status_reason="It runs"),
        pb.PipelineStage(name="ANALYSIS", status=pb.STAGE_FAILURE, status_reason="It fails"),
        pb.PipelineStage(name="CLEAN", status=pb.STAGE_NOT_STARTED_YET),
        pb.PipelineStage(
            name="ROLLBACK",
            rollback=True,
            status=pb.STAGE_SUCCESS,
            status_reason="The version before runs again",
        ),
    ]
    return pb.Deployment(status=status, stages=stages)


def test_a_failure_says_what_failed_and_what_was_done_about_it() -> None:
    assert failure_lines(deployment(pb.DEPLOYMENT_FAILURE)) == [
        "ANALYSIS: It fails",
        "ROLLBACK: The version before runs again",
    ]


def test_a_success_needs_no_explanation() -> None:
    assert failure_lines(deployment(pb.DEPLOYMENT_SUCCESS)) == []


@pytest.mark.parametrize(
    ("created_at", "seconds"),
    [
        pytest.param(100, 0.4, id="as observed"),
        pytest.param(90, 35.0, id="it began before this process"),
    ],
)
def test_how_long_a_deployment_took(created_at: int, seconds: float) -> None:
    resumed = pb.Deployment(created_at=created_at, completed_at=125)
    assert seconds_taken(resumed, observed=0.4, started_at=100) == seconds


def test_the_address_leads_to_the_sign_in_page_of_the_project(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Terminal().show_ready("http://127.0.0.1:1", "http://127.0.0.1:2", DataDir(tmp_path), "secret")
    printed = capsys.readouterr().out
    assert "PipeCD is running: http://127.0.0.1:1/login?project=quickstart\n" in printed


def test_a_commit_message_cannot_change_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = deployment(pb.DEPLOYMENT_SUCCESS)
    shown.application_name, shown.trigger.commit.hash = "web", "c" * 40
    shown.trigger.commit.message = "fix\x1b]0;title\x07 [bold]it[/bold]"
    Terminal().show_deployment(shown, 1.25, "http://127.0.0.1:8080/deployments/d")
    assert capsys.readouterr().out == (
        "✓ web at ccccccc (fix ]0;title  [bold]it[/bold]): success after 1.2 s"
        "  http://127.0.0.1:8080/deployments/d\n"
    )


def test_names_are_printed_in_one_readable_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = deployment(pb.DEPLOYMENT_SUCCESS)
    shown.application_name, shown.trigger.commit.hash = "gnp\u202egpj", "c" * 40
    shown.trigger.commit.message = "m" * 9000
    Terminal().show_deployment(shown, 1.25, "http://127.0.0.1:8080/deployments/d")
    printed = capsys.readouterr().out
    assert printed.startswith("✓ gnp gpj at ccccccc (mmm")
    assert "m…): success after" in printed
    assert len(printed) < 500


def test_a_step_says_how_long_it_took_and_not_that_it_succeeded_if_it_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal()
    with terminal.step("Starting"):
        pass
    with pytest.raises(ValueError, match="no"), terminal.step("Failing"):
        raise ValueError("no")
    assert capsys.readouterr().out == "✓ Starting 0.0 s\n"


def test_what_a_quickstart_has_no_use_for_is_not_loaded() -> None:
    code = (
        "import sys; from pipecd.cli import tree; import click\n"
        "tree().get_command(click.Context(tree()), 'quickstart')\n"
        "print(*sorted({'rich', 'pygments', 'opentelemetry'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
