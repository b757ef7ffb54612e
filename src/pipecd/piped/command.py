# SPDX-License-Identifier: Apache-2.0
"""The commands `piped run` and, with the flags of v0, `piped piped`."""

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import structlog

from pipecd.commandline import configsource, flags
from pipecd.commandline.configsource import Read
from pipecd.commandline.signals import run_until_signal
from pipecd.config.catalog import load_catalog
from pipecd.config.piped import piped_key
from pipecd.config.piped_mask import secret_values
from pipecd.config.piped_v0 import with_default_kubernetes
from pipecd.config.read import PipedConfig, read_startable_piped
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe.log import configure
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.piped.own_secrets import remove_secrets
from pipecd.program import handover
from pipecd.program.handover import LauncherConnection, Phase, PipedReport

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_SOURCES: Mapping[str, Callable[[str], Read]] = {
    "config-file": configsource.from_file,
    "config-data": configsource.from_data,
    "config-gcp-secret": configsource.from_gcp_secret,
    "config-aws-secret": configsource.from_aws_secret,
    "config-aws-ssm-parameter": configsource.from_aws_ssm_parameter,
}
_HOME = Path.home() / ".piped"


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    for add in reversed(
        (
            flags.text("config-file", "The path to the configuration file."),
            flags.text("config-data", "The configuration, encoded in base64."),
            flags.text(
                "config-gcp-secret", "The Google Cloud secret that contains the configuration."
            ),
            flags.text(
                "config-aws-secret", "The AWS secret that contains the configuration in base64."
            ),
            flags.text(
                "config-aws-ssm-parameter",
                "The AWS SSM parameter that contains the configuration in base64.",
            ),
            flags.switch("insecure", "Connect to the control plane without TLS."),
            flags.text("cert-file", "The CA certificate to trust instead of the system's."),
            flags.port(
                "admin-port",
                "The port of the admin server: version, health, metrics.",
                default=9085,
            ),
            flags.text("admin-host", "The interface of the admin server; all by default."),
            flags.port(
                "plugin-service-port",
                "The port of loopback on which plugins call piped, instead of a Unix socket.",
                default=None,
            ),
            flags.text(
                "tools-dir", "The directory of installed tools.", default=str(_HOME / "tools")
            ),
            flags.text(
                "plugins-dir",
                "The directory of downloaded plugins.",
                default=str(_HOME / "plugins"),
            ),
            flags.text(
                "workspace-dir", "The directory of sources and state.", default=str(_HOME / "work")
            ),
            flags.switch("add-login-user-to-passwd", "Accepted for compatibility; has no effect."),
            flags.duration("grace-period", "How long piped may take to shut down.", default="30s"),
            flags.text("launcher-version", "The version of the launcher, for metrics."),
            flags.number(
                handover.FLAG,
                "The socket on which the launcher says when to start; only the launcher sets it.",
                default=None,
            ),
            flags.switch("force-plugin-redownload", "Download external plugins again."),
            flags.number(
                "app-manifest-cache-count",
                "Accepted for compatibility; has no effect.",
                default=150,
            ),
            flags.switch(
                "enable-default-kubernetes-cloud-provider",
                "Deploy to the cluster that piped runs in, as kubernetes-default.",
            ),
        )
    ):
        command = add(command)
    return flags.every_command(command)


@click.command("run")
@_flags
def run(**given: Any) -> None:
    """Run a piped."""
    _run(given)


@click.command("piped")
@_flags
def piped(**given: Any) -> None:
    """Run a piped (flags of v0)."""
    _run(given)


def _run(given: dict[str, Any]) -> None:
    configure(given["log_level"], given["log_encoding"], program="piped")
    descriptor: int | None = given[handover.FLAG.replace("-", "_")]
    launcher = LauncherConnection(descriptor) if descriptor is not None else None
    try:
        settings = replace(settings_of(given), launcher=launcher)
        spec = settings.config.spec
        removed = remove_secrets(os.environ, {piped_key(spec), *secret_values(spec)})
        if removed:
            log.info("variables with secrets of piped are hidden from programs", variables=removed)
        run_until_signal(run_piped(settings, ready=_keep_what_is_loaded), grace=settings.grace)
    except PipecdError as e:
        if launcher is not None:
            launcher.report(PipedReport(Phase.FAILED, str(e)))
        raise


def _keep_what_is_loaded() -> None:
    """Exempts the objects loaded so far from garbage collections, which walk through all others."""
    gc.collect()
    gc.freeze()


def settings_of(given: dict[str, Any]) -> PipedSettings:
    """Returns the settings that the flags describe."""
    config = load_config(given)
    if given["enable_default_kubernetes_cloud_provider"]:
        config = replace(config, spec=with_default_kubernetes(config.spec))
    return PipedSettings(
        config=config,
        insecure=given["insecure"],
        cert_file=given["cert_file"],
        workspace=Path(given["workspace_dir"]).absolute(),
        tools_dir=Path(given["tools_dir"]).absolute(),
        admin_host=given["admin_host"],
        admin_port=given["admin_port"],
        plugins_dir=Path(given["plugins_dir"]).absolute(),
        redownload_plugins=given["force_plugin_redownload"],
        plugin_service_port=given["plugin_service_port"],
        launcher_version=given["launcher_version"],
        with_metrics=given["metrics"],
        grace=given["grace_period"],
    )


def load_config(given: dict[str, Any]) -> PipedConfig:
    """Reads the configuration from the one source that the flags name."""
    sources = [name for name in _SOURCES if given[name.replace("-", "_")]]
    if not sources:
        raise UserMistake(
            f"at least one of the flags in the group [{' '.join(_SOURCES)}] is required"
        )
    if len(sources) > 1:
        raise UserMistake(
            f"if any flags in the group [{' '.join(_SOURCES)}] are set none of the others can be; "
            f"[{' '.join(sorted(sources))}] were all set"
        )
    (source,) = sources
    value = given[source.replace("-", "_")]
    name = value if source == "config-file" else f"--{source}"
    return read_startable_piped(_SOURCES[source](value)(), file=name, catalog=load_catalog())
