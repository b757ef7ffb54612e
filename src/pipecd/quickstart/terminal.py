# SPDX-License-Identifier: Apache-2.0
"""What `pipecd quickstart` prints on the terminal."""

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from pipecd.model.deployment import DeploymentStatus
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

    def show_ready(self, address: str, data: DataDir, password: str) -> None:
        """Prints the address of the console, the credentials and what to try first."""
        self._console.print(f"""
[bold]PipeCD is running:[/bold] {address}
  project   {PROJECT}
  username  {USERNAME}
  password  {escape(password)}

Change the sample application and commit; PipeCD deploys the commit:
  cd {escape(str(data.repository))}
  echo "Good evening" > hello/greeting.txt
  git commit -am "Greet in the evening"

[dim]Ctrl-C stops it; the next start resumes with the same data.[/dim]""")

    def show_deployment(
        self, name: str, status: DeploymentStatus, seconds: float, url: str
    ) -> None:
        """Prints how a deployment ended."""
        succeeded = status is DeploymentStatus.SUCCESS
        mark = "[green]✓[/green]" if succeeded else "[red]✗[/red]"
        self._console.print(
            f"{mark} {escape(name)}: {status.name.lower()} after {seconds:.1f} s"
            f"  [dim]{escape(url)}[/dim]"
        )

    def show_stopped(self) -> None:
        self._console.print("\nstopped; the next start resumes with the same data")
