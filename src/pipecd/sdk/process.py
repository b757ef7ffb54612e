# SPDX-License-Identifier: Apache-2.0
"""Runs a plugin as a program: `serve(PLUGIN)` is the whole main module of a third-party plugin.

The flags are those that upstream's piped passes, so the program runs under both pipeds. Our piped
names a Unix socket to listen on in the environment, and the file of the entry if it knows that the
program uses this SDK.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypedDict, Unpack

import click
import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from pipecd.commandline import flags
from pipecd.commandline.main import run
from pipecd.config.piped import PluginSpec
from pipecd.model.errors import UserMistake
from pipecd.observe.admin import admin_server, standard_pages
from pipecd.observe.log import configure
from pipecd.observe.metrics import ConstantLabels
from pipecd.proto.plugin import deployment_pb2, livestate_pb2, planpreview_pb2
from pipecd.sdk.deployment import DeployTarget, PluginEntry
from pipecd.sdk.host_client import RemoteHost
from pipecd.sdk.options import decode
from pipecd.sdk.plugin import StagePlugin
from pipecd.sdk.serving import SOCKET_VARIABLE, PluginServer, rpc_handlers
from pipecd.wire.channel import open_channel
from pipecd.wire.server import UNIX, ServerOptions, TlsFiles, grpc_server

logger = structlog.get_logger()

GROUP = "pipecd.plugins"
DEPLOYMENT_SERVICE = deployment_pb2.DESCRIPTOR.services_by_name["DeploymentService"]
LIVESTATE_SERVICE = livestate_pb2.DESCRIPTOR.services_by_name["LivestateService"]
PREVIEW_SERVICE = planpreview_pb2.DESCRIPTOR.services_by_name["PlanPreviewService"]


@dataclass(frozen=True)
class PluginProcess:
    """The flags of a plugin process, and the socket that it listens on instead of a port."""

    piped: str
    spec: PluginSpec
    socket: str = ""
    grace: float = 30.0
    tls: TlsFiles | None = None
    with_metrics: bool = True
    reflects: bool = False


class _Flags(TypedDict):
    piped_plugin_service: str
    config: str
    config_file: str
    grace_period: float
    tls: bool
    cert_file: str
    key_file: str
    enable_grpc_reflection: bool
    log_level: str
    log_encoding: str
    metrics: bool
    profile: bool
    profile_debug_logging: bool
    profiler_credentials_file: str


def serve(plugin: Callable[[], StagePlugin], arguments: Sequence[str] | None = None) -> None:
    """Runs the plugin as a program until a signal stops it."""
    sys.exit(run(_command(plugin), arguments))


def serve_installed(arguments: Sequence[str] | None = None) -> None:
    """Runs the plugin of an entry point, with the arguments that follow its name."""
    name, *rest = sys.argv[1:] if arguments is None else arguments
    serve(installed_plugin(name), rest)


def installed_plugin(name: str) -> Callable[[], StagePlugin]:
    """Returns the class of an installed plugin by its entry point."""
    for entry in entry_points(group=GROUP, name=name):
        plugin = entry.load()
        if isinstance(plugin, type) and issubclass(plugin, StagePlugin):
            return plugin
        raise UserMistake(f"the entry point {name} of {GROUP} is not a class of a plugin")
    raise UserMistake(f"there is no entry point {name} of {GROUP}", hint="install the plugin")


def entry_of(spec: PluginSpec) -> PluginEntry:
    """Returns the plugin's entry of piped's configuration."""
    return PluginEntry(
        name=spec.name,
        config=spec.config,
        targets=tuple(DeployTarget(t.name, t.labels, t.config) for t in spec.deploy_targets),
    )


def _command(plugin: Callable[[], StagePlugin]) -> click.Group:
    @click.group("pipecd-plugin", help="A plugin of piped.")
    def program() -> None: ...

    @program.command("start", help="Start the plugin.")
    @flags.text("piped-plugin-service", "The address of piped's plugin service.", required=True)
    @flags.text("config", "The JSON of the plugin's entry.")
    @flags.text("config-file", "The file of that JSON, which other users cannot read.")
    @flags.duration("grace-period", "How long running calls may take to finish.", default="30s")
    @flags.switch("tls", "Serve with TLS.")
    @flags.text("cert-file", "The certificate of the server.")
    @flags.text("key-file", "The private key of the server.")
    @flags.switch("enable-grpc-reflection", "Offer gRPC reflection.")
    @flags.every_command
    def start(**given: Unpack[_Flags]) -> None:  # pyright: ignore[reportUnusedFunction]
        configure(given["log_level"], given["log_encoding"], program="pipecd-plugin")
        # The programs that the plugin starts are no plugins.
        socket = os.environ.pop(SOCKET_VARIABLE, "")
        settings = PluginProcess(
            piped=given["piped_plugin_service"],
            spec=_read_entry(given["config"], given["config_file"]),
            socket=socket,
            grace=given["grace_period"],
            tls=TlsFiles(given["cert_file"], given["key_file"]) if given["tls"] else None,
            with_metrics=given["metrics"],
            reflects=given["enable_grpc_reflection"],
        )
        asyncio.run(run_plugin(plugin(), settings))

    return program


def _read_entry(config: str, config_file: str) -> PluginSpec:
    """Reads the plugin's entry from the one flag that has it."""
    if bool(config) == bool(config_file):
        raise UserMistake('required flag(s) "config" not set', hint="or set config-file")
    flag, content = "--config", config.encode()
    if config_file:
        flag = "--config-file"
        try:
            content = Path(config_file).read_bytes()
        except OSError as e:
            raise UserMistake(f"{flag}: cannot read {config_file}: {e.strerror}") from e
    spec = decode(PluginSpec, content, what=flag)
    if not spec.url:
        raise UserMistake(f"{flag}: url must be set")
    return spec


async def run_plugin(plugin: StagePlugin, settings: PluginProcess) -> None:
    """Serves the plugin until SIGTERM or SIGINT, which also stop its running stages."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as opened:
        channel = await opened.enter_async_context(
            open_channel(settings.piped, authorization="", insecure=True)
        )
        host = RemoteHost(channel)
        server = PluginServer(plugin, entry_of(settings.spec), host)
        # Both the metrics of the SDK and those that the plugin declares with prometheus-client.
        registry = CollectorRegistry()
        registry.register(ConstantLabels(REGISTRY, {}))
        registry.register(ConstantLabels(host.plugin_metrics, {}))
        pages = standard_pages(registry if settings.with_metrics else None)
        admin = await opened.enter_async_context(admin_server(pages, host="localhost", port=0))
        await server.prepare(opened)
        handlers = [rpc_handlers(DEPLOYMENT_SERVICE, server)]
        handlers += [rpc_handlers(LIVESTATE_SERVICE, server)] if server.has_live_state else []
        handlers += [rpc_handlers(PREVIEW_SERVICE, server)] if server.has_plan_preview else []
        port = await opened.enter_async_context(
            grpc_server(
                handlers,
                host=f"{UNIX}{settings.socket}" if settings.socket else "localhost",
                port=settings.spec.port,
                tls=settings.tls,
                grace=settings.grace,
                options=ServerOptions(reflection=settings.reflects),
            )
        )
        address = {"socket": settings.socket} if settings.socket else {"port": port}
        logger.info("plugin is ready", plugin=server.name, admin_port=admin, **address)
        await stopped.wait()
        # During its grace period the server still sends the logs of the stopped stages.
        server.stop_stages()
