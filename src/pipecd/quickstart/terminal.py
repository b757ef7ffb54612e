# SPDX-License-Identifier: Apache-2.0
"""What `pipecd quickstart` prints on the terminal."""

import shlex
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.quickstart.datadir import PROJECT, USERNAME, DataDir


class Terminal:
    """Prints the progress of the start, how to sign in, and each finished deployment."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Generator[None, None, None]:
        """Shows that a step is running, and then how long it took."""
        started = time.monotonic()
        with self._console.status(f"{title} …"):
            yield
        seconds = time.monotonic() - started
        self._console.print(f"[green]✓[/green] {title} [dim]{seconds:.1f} s[/dim]")

    def show_ready(self, address: str, service: str, data: DataDir, password: str) -> None:
        """Prints the addresses, the credentials and what to try first."""
        self._console.print(f"""
[bold]PipeCD is running:[/bold] {address}
  project   {PROJECT}
  username  {USERNAME}
  password  {escape(password)}

{_about_service(service, data) if data.has_service else _NO_SERVICE}

Change the other sample application and commit; PipeCD deploys the commit:
  cd {escape(shlex.quote(str(data.repository)))}
  echo "Good evening" > hello/greeting.txt
  git commit -am "Greet in the evening"

[dim]Ctrl-C stops it; the next start resumes with the same data.[/dim]""")

    def show_deployment(self, deployment: Deployment, seconds: float, url: str) -> None:
        """Prints how a deployment ended, and why it failed."""
        status, commit = DeploymentStatus(deployment.status), deployment.trigger.commit
        mark = "[green]✓[/green]" if status is DeploymentStatus.SUCCESS else "[red]✗[/red]"
        name = f"{deployment.application_name} at {commit.hash[:7]} ({commit.message})"
        self._console.print(
            f"{mark} {escape(name)}: {status.name.lower()} after {seconds:.1f} s"
            f"  [dim]{escape(url)}[/dim]"
        )
        for line in failure_lines(deployment):
            self._console.print(f"  [dim]{escape(line)}[/dim]")

    def show_visitors(self, requests: int, failed: int) -> None:
        """Prints what the visitors of the web service got during a deployment."""
        self._console.print(
            f"  [dim]{requests} requests of visitors meanwhile, {failed} of them failed[/dim]"
        )

    def show_broken(self, data: DataDir, commit: str) -> None:
        """Prints what the bad version is, and how to repair it."""
        self._console.print(f"""A version of the web service with a typo is committed: {commit}
Half of the requests go to its canary; when they fail, PipeCD rolls back.

Repair it:
  git -C {escape(shlex.quote(str(data.repository)))} revert --no-edit {commit}""")

    def show_stopped(self) -> None:
        self._console.print("\nstopped; the next start resumes with the same data")


def failure_lines(deployment: Deployment) -> list[str]:
    """Returns what failed in a deployment, and what its rollback did about it."""
    if DeploymentStatus(deployment.status) is not DeploymentStatus.FAILURE:
        return []
    return [
        f"{stage.name}: {stage.status_reason}"
        for stage in deployment.stages
        if stage.status == StageStatus.FAILURE
        or (stage.rollback and stage.status == StageStatus.SUCCESS)
    ]


_NO_SERVICE = """This directory is of an earlier version, whose repository has no web service.
To see one deployed and rolled back, start with another --data-dir."""


def _about_service(service: str, data: DataDir) -> str:
    return f"""[bold]It deploys a web service:[/bold] {service}
Break it in a second terminal, and watch its canary fail and roll back by itself:
  {_command("--break", data)}"""


def _command(option: str, data: DataDir) -> str:
    """Returns the command line of a quickstart with the same data."""
    default = data.path == (Path.home() / ".pipecd" / "quickstart").resolve()
    where = "" if default else f" --data-dir {shlex.quote(str(data.path))}"
    return escape(f"{Path(sys.argv[0]).resolve()} quickstart {option}{where}")
