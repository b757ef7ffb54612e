# SPDX-License-Identifier: Apache-2.0
"""The command `pipecd quickstart`."""

from pathlib import Path
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.commandline.signals import run_until_signal
from pipecd.observe.log import configure
from pipecd.quickstart.app import run_quickstart
from pipecd.quickstart.terminal import Terminal


@click.command()
@flags.shared(log_level="warn")
@flags.text("data-dir", "The directory for all data; ~/.pipecd/quickstart by default.")
@flags.number("port", "The port of the console and the API; 0 takes a free one.", default=8080)
def quickstart(**given: Any) -> None:
    """Run a whole PipeCD with a sample application on this machine, on loopback only."""
    configure(given["log_level"], given["log_encoding"], program="quickstart")
    directory = given["data_dir"]
    path = Path(directory).expanduser() if directory else Path.home() / ".pipecd" / "quickstart"
    run_until_signal(run_quickstart(path, given["port"], Terminal()))
