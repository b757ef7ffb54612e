# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a quickstart on the terminal."""

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from pipecd.model.deployment import DeploymentStatus
from pipecd.quickstart.datadir import PROJECT, USERNAME, DataDir


class Terminal:
    """Tells each step while it is done, then what to do next."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, doing: str) -> Generator[None, None, None]:
        """Shows a step while it is going on and how long it took."""
        began = time.monotonic()
        with self._console.status(f"{doing} …"):
            yield
        took = time.monotonic() - began
        self._console.print(f"[green]✓[/green] {doing} [dim]{took:.1f} s[/dim]")

    def ready(self, address: str, data: DataDir, password: str) -> None:
        """Tells where the console is and how to go on."""
        say = self._console.print
        say()
        say(f"[bold]PipeCD is running:[/bold] {address}")
        say(f"  project   {PROJECT}")
        say(f"  username  {USERNAME}")
        say(f"  password  {escape(password)}")
        say()
        say("Change the sample application and commit; it is deployed by itself:")
        say(f"  cd {escape(str(data.repository))}")
        say('  echo "Good evening" > hello/greeting.txt')
        say('  git commit -am "Greet in the evening"')
        say()
        say("[dim]Ctrl-C ends it; the next start goes on where it was.[/dim]")

    def deployed(self, what: str, status: DeploymentStatus, seconds: float, url: str) -> None:
        """Tells that a deployment has ended."""
        good = status is DeploymentStatus.SUCCESS
        mark = "[green]✓[/green]" if good else "[red]✗[/red]"
        word = status.name.lower()
        self._console.print(
            f"{mark} {escape(what)}: {word} after {seconds:.1f} s  [dim]{escape(url)}[/dim]"
        )

    def ended(self) -> None:
        """Says goodbye."""
        self._console.print("\nstopped; everything is kept")
