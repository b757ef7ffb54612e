# SPDX-License-Identifier: Apache-2.0
"""What `pipecd quickstart` prints on the terminal."""

import os
import shlex
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import click

from pipecd.model.count import counted
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.quickstart.datadir import PROJECT, USERNAME, DataDir

# Of a subject or a reason; the console has the rest.
_MAX_LETTERS = 300
_ERASE_LINE = "\r\x1b[2K"


class Terminal:
    """Prints the progress of the start, how to sign in, and each finished deployment."""

    def __init__(self) -> None:
        is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        # Without a choice, click leaves colours out where nobody would see them.
        self._color = False if is_plain else None
        self._shows_progress = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    @contextmanager
    def step(self, title: str) -> Generator[None, None, None]:
        """Shows that a step is running, and then how long it took."""
        started = time.monotonic()
        if self._shows_progress:
            click.echo(f"{title} …", nl=False)
        try:
            yield
        finally:
            if self._shows_progress:
                click.echo(_ERASE_LINE, nl=False)
        seconds = time.monotonic() - started
        self._print(f"{_GOOD} {title} {_dim(f'{seconds:.1f} s')}")

    def show_ready(self, address: str, service: str, data: DataDir, password: str) -> None:
        """Prints the addresses, the credentials and what to try first.

        The sign-in page knows the project from its address, and asks for the rest.
        """
        self._print(f"""
{_bold("PipeCD is running:")} {address}/login?project={PROJECT}
  project   {PROJECT}
  username  {USERNAME}
  password  {password}

{_about_service(service, data) if data.has_service else _NO_SERVICE}

Change the other sample application and commit; PipeCD deploys the commit:
  cd {shlex.quote(str(data.repository))}
  echo "Good evening" > hello/greeting.txt
  git commit -am "Greet in the evening"

{_dim("Ctrl-C stops it; the next start resumes with the same data.")}""")

    def show_deployment(self, deployment: Deployment, seconds: float, url: str) -> None:
        """Prints how a deployment ended, and why it failed."""
        status, commit = DeploymentStatus(deployment.status), deployment.trigger.commit
        mark = _GOOD if status is DeploymentStatus.SUCCESS else _BAD
        application = _printable(deployment.application_name)
        name = f"{application} at {commit.hash[:7]} ({_printable(commit.message)})"
        self._print(f"{mark} {name}: {status.name.lower()} after {seconds:.1f} s  {_dim(url)}")
        for line in failure_lines(deployment):
            self._print(f"  {_dim(_printable(line))}")

    def show_visitors(self, requests: int, failed: int) -> None:
        """Prints what the visitors of the web service got during a deployment."""
        sent = counted(requests, "request")
        text = f"the quickstart sent {sent} meanwhile, {failed} of them failed"
        self._print(f"  {_dim(text)}")

    def show_broken(self, data: DataDir, commit: str) -> None:
        """Prints what the bad version is, and how to repair it."""
        self._print(f"""A version of the web service with a typo is committed: {commit}
Half of the requests go to its canary; when they fail, PipeCD rolls back.

Repair it:
  git -C {shlex.quote(str(data.repository))} revert --no-edit {commit}""")

    def show_stopped(self) -> None:
        self._print("\nstopped; the next start resumes with the same data")

    def _print(self, text: str) -> None:
        click.echo(text, color=self._color)


def _printable(text: str) -> str:
    """A name, a subject or a reason in one line, without what would change the terminal."""
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if len(line) <= _MAX_LETTERS else f"{line[: _MAX_LETTERS - 1]}…"


def _bold(text: str) -> str:
    return click.style(text, bold=True)


def _dim(text: str) -> str:
    return click.style(text, dim=True)


_GOOD, _BAD = click.style("✓", fg="green"), click.style("✗", fg="red")


def seconds_taken(deployment: Deployment, *, observed: float, started_at: int) -> float:
    """Returns how long a deployment took; it may have begun before this process has started."""
    if deployment.created_at < started_at:
        return float(deployment.completed_at - deployment.created_at)
    return observed


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
    return f"""{_bold("It deploys a web service:")} {service}
Break it in a second terminal, and watch its canary fail and roll back by itself:
  {_command("--break", data)}"""


def _command(option: str, data: DataDir) -> str:
    """Returns the command line of a quickstart with the same data."""
    default = data.path == (Path.home() / ".pipecd" / "quickstart").resolve()
    where = "" if default else f" --data-dir {shlex.quote(str(data.path))}"
    return f"{Path(sys.argv[0]).resolve()} quickstart {option}{where}"
