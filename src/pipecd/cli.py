# SPDX-License-Identifier: Apache-2.0
"""The commands `pipecd` (also installed as `controlplane`), `piped` and `launcher`.

Each sub-command is defined in its package, which is imported only when the command runs.
"""

import os
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
_PROJECT = ("pipecd.controlplane.operator_command:project", "Manage projects.")
_API_KEY = ("pipecd.controlplane.operator_command:api_key", "Manage API keys of projects.")
_BACKUP = (
    "pipecd.controlplane.operator_command:backup",
    "Copy the SQLite database of a control plane.",
)
_COPY_STORES = (
    "pipecd.controlplane.operator_command:copy_stores",
    "Copy the stores of a control plane to other ones.",
)
_HASH_PASSWORD = (
    "pipecd.controlplane.operator_command:hash_password",
    "Print the hash of a password for the configuration.",
)
_PIPED_V0 = ("pipecd.piped.command:piped", "Run a piped (first-generation flags).")
_PIPED_V1 = ("pipecd.piped.command:run", "Run a piped.")
_LAUNCHER = ("pipecd.launcher.command:launcher", "Run a piped and keep it up to date.")
_QUICKSTART = (
    "pipecd.quickstart.command:quickstart",
    "Run a whole PipeCD with a sample application on this machine.",
)


def tree(name: str = "pipecd") -> LazyGroup:
    """The commands of `pipecd`."""
    branches = {
        "quickstart": _QUICKSTART,
        "server": _SERVER,
        "ops": _OPS,
        "project": _PROJECT,
        "api-key": _API_KEY,
        "backup": _BACKUP,
        "copy-stores": _COPY_STORES,
        "hash-password": _HASH_PASSWORD,
        "unseal-secrets": _UNSEAL_SECRETS,
        "piped": _PIPED_V1,
        "launcher": _LAUNCHER,
    }
    return LazyGroup(
        name, branches, "One continuous-delivery system for every kind of application."
    )


def piped_tree() -> LazyGroup:
    """The commands of `piped`."""
    branches = {"run": _PIPED_V1, "piped": _PIPED_V0}
    return LazyGroup("piped", branches, "The agent that carries out deployments.")


def launcher_tree() -> LazyGroup:
    """The commands of `launcher`."""
    branches = {"launcher": _LAUNCHER}
    return LazyGroup("launcher", branches, "Runs a piped and keeps it up to date.")


def main() -> None:
    name = "controlplane" if Path(sys.argv[0]).name == "controlplane" else "pipecd"
    _run(tree(name))


def piped_main() -> None:
    _run(piped_tree())


def launcher_main() -> None:
    _run(launcher_tree())


def _run(commands: LazyGroup) -> None:
    # gRPC reads it when it is imported, and logs failed handshakes, which our messages explain.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(run(commands))
