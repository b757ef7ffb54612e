# SPDX-License-Identifier: Apache-2.0
"""The command `pipectl`; each subcommand is imported only when it is run."""

import os
import sys

from pipecd.commandline.lazy_group import LazyGroup
from pipecd.commandline.main import run

_COMMANDS = {
    "application": ("pipecd.pipectl.application:application", "Work with applications."),
    "context": ("pipecd.pipectl.login:context", "Work with several control planes."),
    "deployment": ("pipecd.pipectl.deployment:deployment", "Work with deployments."),
    "encrypt": ("pipecd.pipectl.encrypt:encrypt", "Encrypt a secret for a piped."),
    "event": ("pipecd.pipectl.event:event", "Work with events."),
    "init": ("pipecd.pipectl.init:init", "Write the configuration file of a new application."),
    "lint": ("pipecd.pipectl.lint:lint", "Check configuration files."),
    "login": ("pipecd.pipectl.login:login", "Use an API key in further commands."),
    "migrate": ("pipecd.pipectl.migrate:migrate", "Move from kinds to plugins."),
    "piped": ("pipecd.pipectl.piped:piped", "Work with pipeds."),
    "plan-preview": (
        "pipecd.pipectl.plan_preview:plan_preview",
        "Show what a branch would deploy.",
    ),
    "plugin": ("pipecd.pipectl.plugin:plugin", "Create, check and publish plugins."),
    "schema": ("pipecd.pipectl.schema:schema", "Print the JSON Schema of a configuration kind."),
    "session": ("pipecd.pipectl.session:session", "Work with the sessions of users."),
    "transfer": (
        "pipecd.pipectl.transfer:transfer",
        "Move a project to another control plane.",
    ),
}


def tree() -> LazyGroup:
    return LazyGroup("pipectl", _COMMANDS, "The command line of a PipeCD control plane.")


def main() -> None:
    # gRPC reads it when it is imported, and logs failed handshakes, which our errors explain.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(run(tree()))
