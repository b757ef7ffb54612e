# SPDX-License-Identifier: Apache-2.0
"""The command `pipecd quickstart`."""

import asyncio
from pathlib import Path
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.commandline.signals import run_until_signal
from pipecd.observe.log import configure
from pipecd.quickstart.app import run_quickstart
from pipecd.quickstart.broken_version import break_service
from pipecd.quickstart.datadir import DataDir
from pipecd.quickstart.terminal import Terminal

# A quickstart that is just starting deploys its first version within seconds.
_PATIENCE_SECONDS = 20.0


@click.command()
@flags.shared(log_level="warn")
@flags.text("data-dir", "The directory for all data; ~/.pipecd/quickstart by default.")
@flags.port("port", "The port of the console and the API; 0 takes a free one.", default=8080)
@flags.switch(
    "break", "Commit a bad version of the web service, which a running quickstart deploys."
)
def quickstart(**given: Any) -> None:
    """Run a whole PipeCD with sample applications on this machine, on loopback only."""
    configure(given["log_level"], given["log_encoding"], program="quickstart")
    directory = given["data_dir"]
    path = Path(directory).expanduser() if directory else Path.home() / ".pipecd" / "quickstart"
    if given["break"]:
        data, terminal = DataDir(path.resolve()), Terminal()
        with terminal.step("Breaking the web service"):
            commit = asyncio.run(break_service(data, at_most=_PATIENCE_SECONDS))
        terminal.show_broken(data, commit)
        return
    run_until_signal(run_quickstart(path, given["port"], Terminal()))
