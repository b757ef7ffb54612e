# SPDX-License-Identifier: Apache-2.0
"""The command `launcher`."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.commandline.signals import run_until_signal
from pipecd.launcher.desired_version import DesiredVersion, DesiredVersionWatcher
from pipecd.launcher.launch import Launcher, LaunchSettings
from pipecd.launcher.metrics import LauncherMetrics
from pipecd.launcher.plan import piped_arguments
from pipecd.launcher.release import open_releases
from pipecd.launcher.source import open_source
from pipecd.observe.admin import Page, admin_server, standard_pages
from pipecd.observe.log import configure


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@flags.every_command
@flags.text("config-file", "The configuration file of the piped.")
@flags.text("config-data", "The configuration of the piped, in base64.")
@flags.switch("config-from-gcp-secret", "Load the configuration from Google Cloud Secret Manager.")
@flags.text("gcp-secret-id", "The secret, projects/P/secrets/S[/versions/V].")
@flags.switch("config-from-aws-secret", "Load the configuration from AWS Secrets Manager.")
@flags.text("aws-secret-id", "The name or ARN of the secret.")
@flags.switch("config-from-aws-ssm-parameter-store", "Load the configuration from AWS SSM.")
@flags.text("aws-ssm-parameter", "The name of the parameter.")
@flags.switch("config-from-git-repo", "Load the configuration from a Git repository.")
@flags.text("git-repo-url", "The repository.")
@flags.text("git-branch", "The branch.")
@flags.text("git-piped-config-file", "The file in the repository.")
@flags.text("git-ssh-key-file", "The private key for the repository.")
@flags.text("git-ssh-key-data", "The private key for the repository, in base64.")
@flags.switch("insecure", "Connect to the control plane without TLS.")
@flags.text("cert-file", "The CA certificate to trust instead of the system's.")
@flags.text("home-dir", "The directory of the launcher's files; a cache directory by default.")
@flags.text("default-version", "The version to run when the control plane names none.")
@flags.text(
    "piped-release",
    "The source of other versions: pip:PACKAGE, or a URL with {version}, {os}, {arch}.",
)
@flags.port(
    "launcher-admin-port", "The port of version, health and status; 0 turns it off.", default=0
)
@flags.text("launcher-admin-host", "The interface of that port; all by default.")
@flags.duration("check-interval", "How often to check for changes.", default="1m")
@flags.duration("grace-period", "How long a piped may take to stop.", default="30s")
@flags.duration(
    "start-timeout",
    "How long a new piped may take to become ready beside the running one.",
    default="5m",
)
def launcher(**given: Any) -> None:
    """Run a piped and keep it up to date; other flags are passed to the piped."""
    configure(given["log_level"], given["log_encoding"], program="launcher")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(given["home_dir"] or cache / "piped-launcher").absolute()
    desired = DesiredVersion(given["insecure"], given["cert_file"], given["default_version"])
    settings = LaunchSettings(
        home=home,
        arguments=piped_arguments(sys.argv[1:]),
        check_interval=given["check_interval"],
        grace_period=given["grace_period"],
        start_timeout=given["start_timeout"],
    )
    run_until_signal(_run(given, desired, settings))


async def _run(given: dict[str, Any], desired: DesiredVersion, settings: LaunchSettings) -> None:
    async with AsyncExitStack() as stack:
        load_config = await stack.enter_async_context(open_source(given, home=settings.home))
        releases = open_releases(given["piped_release"], settings.home)
        metrics = LauncherMetrics()
        launcher = Launcher(load_config, desired.version, releases, settings, metrics)
        if admin_port := given["launcher_admin_port"]:
            status = Page(launcher.status, "application/json")
            pages = {**standard_pages(metrics.registry), "/status": status}
            await stack.enter_async_context(
                admin_server(pages, host=given["launcher_admin_host"], port=admin_port)
            )
        watcher = DesiredVersionWatcher(launcher.identity, desired.changes, launcher.check_soon)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watcher.run(), name="desired version")
            await launcher.run()
