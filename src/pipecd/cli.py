# SPDX-License-Identifier: Apache-2.0
"""The commands `pipecd` (also installed as `controlplane`), `piped` and `launcher`.

Each sub-command is defined in its package, which is imported only when the command runs.
"""

import sys
from pathlib import Path

from pipecd.commandline.lazy_group import LazyGroup
from pipecd.commandline.main import run

_SERVER = ("pipecd.controlplane.command:server", "Run the control plane.")
_OPS = ("pipecd.controlplane.command:ops", "Run the background jobs of a control plane.")
_UNSEAL_SECRETS = (
    "pipecd.controlplane.command:unseal_secrets",
    "Store sealed secrets as upstream reads them.",
)
_PIPED_V0 = ("pipecd.piped.command:piped", "Run a piped (first-generation flags).")
_PIPED_V1 = ("pipecd.piped.command:run", "Run a piped.")
_LAUNCHER = ("pipecd.launcher.command:launcher", "Run a piped and keep it up to date.")
_QUICKSTART = (
    "pipecd.quickstart.command:quickstart",
    "Run a whole PipeCD with a sample application on this machine.",
)


def main() -> None:
    name = "controlplane" if Path(sys.argv[0]).name == "controlplane" else "pipecd"
    branches = {
        "quickstart": _QUICKSTART,
        "server": _SERVER,
        "ops": _OPS,
        "unseal-secrets": _UNSEAL_SECRETS,
        "piped": _PIPED_V1,
        "launcher": _LAUNCHER,
    }
    help_text = "One continuous-delivery system for every kind of application."
    sys.exit(run(LazyGroup(name, branches, help_text)))


def piped_main() -> None:
    branches = {"run": _PIPED_V1, "piped": _PIPED_V0}
    sys.exit(run(LazyGroup("piped", branches, "The agent that carries out deployments.")))


def launcher_main() -> None:
    branches = {"launcher": _LAUNCHER}
    sys.exit(run(LazyGroup("launcher", branches, "Runs a piped and keeps it up to date.")))
