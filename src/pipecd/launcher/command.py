# SPDX-License-Identifier: Apache-2.0
"""The command `launcher`."""

import sys
from pathlib import Path
from typing import Any

import click
import structlog

from pipecd.commandline import flags
from pipecd.commandline.longrunning import run_until_signal
from pipecd.config.catalog import load_catalog
from pipecd.config.piped import PipedSpec
from pipecd.config.piped.credential import piped_key
from pipecd.config.read import read_piped
from pipecd.launcher.launch import Launcher, LaunchSettings
from pipecd.launcher.plan import forwarded
from pipecd.launcher.source import Load, from_data, from_file
from pipecd.model.errors import UserMistake
from pipecd.observe.log import configure
from pipecd.observe.version import build_version
from pipecd.proto.service.piped_pb2 import GetDesiredVersionRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel

_LATER = (
    "config-from-gcp-secret", "config-from-aws-secret", "config-from-aws-ssm-parameter-store",
    "config-from-git-repo",
)  # fmt: skip

log = structlog.get_logger()


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
@flags.duration("check-interval", "How often to look for a change.", default="1m")
@flags.duration("grace-period", "How long a piped may take to stop.", default="30s")
def launcher(**given: Any) -> None:
    """Run a piped and keep it up to date; other flags are handed to the piped."""
    configure(given["log_level"], given["log_encoding"], program="launcher")
    load = _source(given)
    home = Path(given["home_dir"]) if given["home_dir"] else Path.home() / ".cache/piped-launcher"
    settings = LaunchSettings(
        home=home,
        arguments=[a for a in forwarded(sys.argv[1:]) if a != "launcher"],
        check_interval=given["check_interval"],
        grace_period=given["grace_period"],
    )

    async def version_of(config: bytes) -> str:
        spec = read_piped(config, file="piped configuration", catalog=load_catalog()).spec
        return await _desired_version(spec, given)

    run_until_signal(Launcher(load, version_of, settings).run())


def _source(given: dict[str, Any]) -> Load:
    for name in _LATER:
        if given[name.replace("-", "_")]:
            raise UserMistake(f"--{name} is not available yet", hint="use --config-file")
    if given["config_file"]:
        return from_file(given["config_file"])
    if given["config_data"]:
        return from_data(given["config_data"])
    raise UserMistake("either config-file or config-data must be set")


async def _desired_version(spec: PipedSpec, given: dict[str, Any]) -> str:
    token = credentials.piped_token(spec.project_id, spec.piped_id, piped_key(spec))
    async with open_channel(
        spec.api_address,
        authorization=token,
        insecure=given["insecure"],
        cert_file=given["cert_file"],
    ) as channel:
        answer = await PipedServiceStub(channel).GetDesiredVersion(GetDesiredVersionRequest())
    wanted = answer.version or given["default_version"] or build_version()
    if wanted != build_version():
        log.warning("another version is desired, running the installed one", version=wanted)
    return build_version()
