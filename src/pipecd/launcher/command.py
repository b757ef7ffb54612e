# SPDX-License-Identifier: Apache-2.0
"""The command `launcher`."""

import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.commandline.longrunning import run_until_signal
from pipecd.launcher.desired import Desired
from pipecd.launcher.launch import Launcher, LaunchSettings
from pipecd.launcher.plan import forwarded
from pipecd.launcher.release import open_releases
from pipecd.launcher.source import Load, from_data, from_file
from pipecd.model.errors import UserMistake
from pipecd.observe.admin import Page, admin_server, standard_pages
from pipecd.observe.log import configure

_LATER = (
    "config-from-gcp-secret", "config-from-aws-secret", "config-from-aws-ssm-parameter-store",
    "config-from-git-repo",
)  # fmt: skip


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@flags.every_command
@flags.text("config-file", "The configuration file of the piped.")
@flags.text("config-data", "The configuration of the piped, in base64.")
@flags.switch("config-from-gcp-secret", "Not available yet.")
@flags.switch("config-from-aws-secret", "Not available yet.")
@flags.switch("config-from-aws-ssm-parameter-store", "Not available yet.")
@flags.switch("config-from-git-repo", "Not available yet.")
@flags.switch("insecure", "Talk plain text to the control plane.")
@flags.text("cert-file", "The certificate to trust instead of the system's.")
@flags.text("home-dir", "Where the launcher keeps its files; a cache directory by default.")
@flags.text("default-version", "The version to run when the control plane names none.")
@flags.text(
    "piped-release",
    "Where other versions come from: pip:PACKAGE, or an address with {version}, {os}, {arch}.",
    default="pip:pipecd",
)
@flags.number("launcher-admin-port", "Version, health and status; 0 is none.", default=0)
@flags.duration("check-interval", "How often to look for a change.", default="1m")
@flags.duration("grace-period", "How long a piped may take to stop.", default="30s")
def launcher(**given: Any) -> None:
    """Run a piped and keep it up to date; other flags are handed to the piped."""
    configure(given["log_level"], given["log_encoding"], program="launcher")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(given["home_dir"] or cache / "piped-launcher").absolute()
    desired = Desired(given["insecure"], given["cert_file"], given["default_version"])
    settings = LaunchSettings(
        home=home,
        arguments=forwarded(sys.argv[1:]),
        check_interval=given["check_interval"],
        grace_period=given["grace_period"],
    )
    releases = open_releases(given["piped_release"], home)
    keeper = Launcher(_source(given), desired.version, releases, settings)
    run_until_signal(_run(keeper, given["launcher_admin_port"]))


async def _run(keeper: Launcher, admin_port: int) -> None:
    async with AsyncExitStack() as opened:
        if admin_port:
            pages = {**standard_pages(None), "/status": Page(keeper.status, "application/json")}
            await opened.enter_async_context(admin_server(pages, host="", port=admin_port))
        await keeper.run()


def _source(given: dict[str, Any]) -> Load:
    for name in _LATER:
        if given[name.replace("-", "_")]:
            raise UserMistake(f"--{name} is not available yet", hint="use --config-file")
    if given["config_file"]:
        return from_file(given["config_file"])
    if given["config_data"]:
        return from_data(given["config_data"])
    raise UserMistake("either config-file or config-data must be set")
