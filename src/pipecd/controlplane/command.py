# SPDX-License-Identifier: Apache-2.0
"""The commands `pipecd server` and `pipecd ops`."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import click
import structlog

from pipecd.commandline import flags
from pipecd.commandline.signals import run_until_signal
from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import (
    OpsSettings,
    Ports,
    ServerSettings,
    control_plane,
    operations,
)
from pipecd.controlplane.auth.request_origin import parse_networks
from pipecd.model.errors import UserMistake
from pipecd.observe.log import configure
from pipecd.wire.server import TlsFiles

log = structlog.get_logger()
_SHORTEST_KEY = 32
_HERE = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"  # noqa: S104


@click.command()
@flags.every_command
@flags.number("port", "The one address of pages and gRPC; -1 for none.", default=9090)
@flags.number("piped-api-port", "gRPC for pipeds.", default=9080)
@flags.number("web-api-port", "gRPC for the web.", default=9081)
@flags.number("http-port", "Pages and sign-in.", default=9082)
@flags.number("api-port", "gRPC for API keys.", default=9083)
@flags.number("admin-port", "Version, health and metrics.", default=9085)
@flags.number("envoy-authz-port", "Verdicts for an Envoy in front (ext_authz).", default=9086)
@flags.text("static-dir", "Another console to serve in place of the built-in pages.")
@flags.text("cache-address", "The Redis (host:port) that all replicas share.")
@flags.text("host", "The interface to listen on; all of them by default.", default=_EVERYWHERE)
@flags.duration("grace-period", "How long running calls may take at the end.", default="30s")
@flags.switch("tls", "Speak TLS on the gRPC ports and the one address.")
@flags.text("cert-file", "The certificate for --tls.")
@flags.text("key-file", "The private key for --tls.")
@flags.switch("insecure-cookie", "Let cookies travel over plain HTTP.")
@flags.text("encryption-key-file", "The key of sessions and stored secrets.", required=True)
@flags.text("config-file", "The configuration of the control plane.", required=True)
@flags.switch("with-ops", "Do the upkeep here too, when no other replica does.", default=True)
@flags.switch("enable-grpc-reflection", "Describe the gRPC services to anyone who asks.")
@flags.switch("traces", "Send traces of this server to the collector as well.")
@flags.strings("trusted-proxies", "Proxies in front whose X-Forwarded-For is believed.")
@flags.text("trace-collector-address", "The OTLP collector (gRPC, host:port) for traces of pipeds.")
def server(**given: Any) -> None:
    """Run the control plane."""
    configure(given["log_level"], given["log_encoding"], program="controlplane.server")
    settings = ServerSettings(
        spec=load_spec(given["config_file"]),
        encryption_key=_encryption_key(given["encryption_key_file"]),
        host=given["host"],
        port=given["port"] if given["port"] >= 0 else None,
        ports=Ports(
            given["piped_api_port"],
            given["web_api_port"],
            given["http_port"],
            given["api_port"],
            given["admin_port"],
            given["envoy_authz_port"],
        ),
        insecure_cookie=given["insecure_cookie"],
        tls=_tls(given),
        metrics=given["metrics"],
        grace_period=given["grace_period"],
        with_ops=given["with_ops"],
        reflection=given["enable_grpc_reflection"],
        trace_collector=given["trace_collector_address"],
        traces=given["traces"],
        cache_address=given["cache_address"],
        trusted_proxies=parse_networks(given["trusted_proxies"]),
        static_dir=_static_dir(given["static_dir"]),
    )
    run_until_signal(_serve(settings))


async def _serve(settings: ServerSettings) -> None:
    async with control_plane(settings) as running:
        # What was loaded stays for good. Looking through it for garbage again and again would take
        # a tenth of a second each time, in which nobody is answered.
        gc.collect()
        gc.freeze()
        log.info("control plane ready", port=running.port)
        await asyncio.Event().wait()


@click.command()
@flags.every_command
@flags.number("http-port", "The pages of the owner, which ask for no password.", default=9082)
@flags.number("admin-port", "Version, health and metrics, on all interfaces.", default=9085)
@flags.text("host", "The interface of the owner's pages; they ask for no password.", default=_HERE)
@flags.duration("grace-period", "Accepted for compatibility; jobs end at once.", default="15s")
@flags.text("config-file", "The configuration of the control plane.", required=True)
@flags.text("gcloud-path", "Accepted for compatibility; has no effect.")
@flags.text("cache-address", "The Redis (host:port) that all replicas share.")
def ops(**given: Any) -> None:
    """Run the upkeep of a control plane and the pages of its owner."""
    configure(given["log_level"], given["log_encoding"], program="controlplane.ops")
    settings = OpsSettings(
        spec=load_spec(given["config_file"]),
        host=given["host"],
        port=given["http_port"],
        admin_host=_EVERYWHERE,
        admin_port=given["admin_port"],
        metrics=given["metrics"],
        cache_address=given["cache_address"],
    )
    run_until_signal(_operate(settings))


async def _operate(settings: OpsSettings) -> None:
    async with operations(settings) as running:
        log.info("ops ready", port=running.port, admin_port=running.admin_port)
        await asyncio.Event().wait()


def load_spec(path: str) -> ControlPlaneSpec:
    """Reads the configuration, or tells every mistake in it."""
    try:
        text = Path(path).read_bytes()
    except OSError as e:
        raise UserMistake(
            f"cannot read the configuration {path}: {e.strerror}", hint="check --config-file"
        ) from e
    return read_control_plane(text, file=path)


def _encryption_key(path: str) -> bytes:
    try:
        key = Path(path).read_bytes()
    except OSError as e:
        raise UserMistake(
            f"cannot read the encryption key {path}: {e.strerror}",
            hint="check --encryption-key-file",
        ) from e
    if len(key) < _SHORTEST_KEY:
        raise UserMistake(
            f"key size ({len(key)}) must be greater than or equal to {_SHORTEST_KEY}",
            hint="make one with: openssl rand -hex 32",
        )
    return key


def _static_dir(path: str) -> Path | None:
    """The directory when it holds a console; command lines of upstream name one that need not."""
    if not path:
        return None
    if not (Path(path) / "index.html").is_file():
        log.warning("no console in the directory, serving the built-in pages", static_dir=path)
        return None
    return Path(path)


def _tls(given: dict[str, Any]) -> TlsFiles | None:
    if not given["tls"]:
        return None
    if not given["cert_file"] or not given["key_file"]:
        raise UserMistake("--tls needs --cert-file and --key-file")
    return TlsFiles(given["cert_file"], given["key_file"])
