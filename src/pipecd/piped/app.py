# SPDX-License-Identifier: Apache-2.0
"""The whole agent on one screen: settings in, parts wired, one task for each of them."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped.credential import KeyPair, git_password, key_pair, piped_key, ssh_key
from pipecd.config.read import PipedConfig
from pipecd.git.access import GitAccess
from pipecd.git.mirror import Repository
from pipecd.git.mirrors import Mirrors, open_mirrors
from pipecd.observe.admin import admin_server, standard_pages
from pipecd.observe.metrics import Labelled
from pipecd.observe.version import build_version
from pipecd.piped.api import PipedApi
from pipecd.piped.appconfig.reporter import AppConfigReporter
from pipecd.piped.deploy.deployer import Deployer
from pipecd.piped.deploy.desk import logs_of
from pipecd.piped.deploy.metadata import MetadataStores
from pipecd.piped.mirror.applications import ApplicationMirror
from pipecd.piped.mirror.commands import CommandMirror
from pipecd.piped.mirror.deployments import DeploymentMirror
from pipecd.piped.mirror.heads import RepositoryHeads
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.presence import Presence, piped_meta
from pipecd.piped.mirror.restart import RestartRequested, RestartWatch
from pipecd.piped.mirror.wakeups import WakeupStream
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.host import PLUGINS_DIRECTORY, PluginHost
from pipecd.piped.pluginhost.process import Patience
from pipecd.piped.pluginhost.store import PluginStore
from pipecd.piped.pluginhost.tools import Toolbox
from pipecd.piped.source.configs import Configs
from pipecd.piped.source.sources import Sources
from pipecd.piped.trigger.trigger import Trigger
from pipecd.proto.service.wakeups_pb2 import Wakeup
from pipecd.secrets import hybrid

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_DEFAULT_EVERY = 60.0


@dataclass(frozen=True)
class PipedSettings:
    """What the command line decides about a piped; without an admin port there is no admin page."""

    config: PipedConfig
    workspace: Path
    insecure: bool = False
    cert_file: str = ""
    tools_dir: Path | None = None
    plugins_dir: Path = PLUGINS_DIRECTORY
    fetch_plugins_anew: bool = False
    admin_host: str = ""
    admin_port: int | None = None
    plugin_service_port: int = 0
    launcher_version: str = ""
    with_metrics: bool = True
    grace: float = 30.0


async def run_piped(settings: PipedSettings, *, ready: Callable[[], None] | None = None) -> None:
    """Runs until cancelled, or until a person asks for a restart."""
    try:
        async with AsyncExitStack() as opened:
            await _run(settings, opened, ready)
    except* RestartRequested:
        log.info("piped ends to be started again")


async def _run(
    settings: PipedSettings, opened: AsyncExitStack, ready: Callable[[], None] | None
) -> None:
    spec, registry = settings.config.spec, _metrics(settings)
    api = await opened.enter_async_context(_connect(settings))
    keys, catalog = _keys(settings), load_catalog()
    presence = Presence(
        api=api,
        meta=piped_meta(settings.config, catalog, public_key=keys.public if keys else b""),
        metrics=lambda: generate_latest(registry) if registry is not None else b"",
    )
    await presence.introduce()
    if settings.admin_port is not None:
        pages = standard_pages(registry)
        admin = admin_server(pages, host=settings.admin_host, port=settings.admin_port)
        await opened.enter_async_context(admin)
    mirrors = await opened.enter_async_context(_open_mirrors(settings))
    shared = _Shared(
        settings=settings,
        api=api,
        mirrors=mirrors,
        applications=ApplicationMirror(api),
        deployments=DeploymentMirror(api),
        commands=CommandMirror(api),
        heads=RepositoryHeads(mirrors),
        configs=Configs(catalog),
    )
    sources = Sources(mirrors, catalog, decrypt=_decrypt(keys))
    deployer = await _deployer(shared, sources, opened)
    reporter = _reporter(shared)
    wakeups = _wakeups(shared, presence.pace, reporter.pace)
    facts = (shared.applications, shared.deployments, shared.commands, shared.heads)
    restart = RestartWatch(shared.commands)
    async with asyncio.TaskGroup() as loops:
        for part in (presence, *facts, wakeups, _trigger(shared), deployer, reporter, restart):
            loops.create_task(part.run(), name=type(part).__name__)
        log.info("piped is running", piped=spec.piped_id, project=spec.project_id)
        if ready is not None:
            ready()


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What most parts need."""

    settings: PipedSettings
    api: PipedApi
    mirrors: Mirrors
    applications: ApplicationMirror
    deployments: DeploymentMirror
    commands: CommandMirror
    heads: RepositoryHeads
    configs: Configs


def _connect(settings: PipedSettings) -> AbstractAsyncContextManager[PipedApi]:
    spec = settings.config.spec
    return PipedApi.connect(
        spec.api_address,
        project=spec.project_id,
        piped=spec.piped_id,
        key=partial(piped_key, spec),
        insecure=settings.insecure,
        cert_file=settings.cert_file,
    )


def _open_mirrors(settings: PipedSettings) -> AbstractAsyncContextManager[Mirrors]:
    repositories = settings.config.spec.repositories
    return open_mirrors(
        [Repository(r.repo_id, r.remote, r.branch) for r in repositories],
        directory=settings.workspace / "git",
        access=_git_access(settings),
    )


def _trigger(shared: _Shared) -> Trigger:
    return Trigger(
        api=shared.api,
        applications=shared.applications,
        deployments=shared.deployments,
        commands=shared.commands,
        heads=shared.heads,
        mirrors=shared.mirrors,
        configs=shared.configs,
        workspace=shared.settings.workspace,
        every=shared.settings.config.spec.sync_interval or _DEFAULT_EVERY,
    )


async def _deployer(shared: _Shared, sources: Sources, opened: AsyncExitStack) -> Deployer:
    settings, metadata = shared.settings, MetadataStores(shared.api)
    tools = Toolbox(settings.tools_dir or settings.workspace / "tools")
    callbacks = Callbacks(
        shared.api,
        commands=shared.commands,
        metadata=metadata,
        tools=tools,
        logs=partial(logs_of, settings.workspace),
    )
    host = PluginHost.start(
        settings.config.spec.plugins,
        callbacks=callbacks,
        service_port=settings.plugin_service_port,
        store=PluginStore(settings.plugins_dir, redownload=settings.fetch_plugins_anew),
        patience=Patience(grace=settings.grace),
    )
    return Deployer(
        api=shared.api,
        deployments=shared.deployments,
        commands=shared.commands,
        applications=shared.applications,
        sources=sources,
        plugins=await opened.enter_async_context(host),
        targets={
            plugin.name: tuple(target.name for target in plugin.deploy_targets)
            for plugin in settings.config.spec.plugins
        },
        callbacks=callbacks,
        metadata=metadata,
        workspace=settings.workspace,
    )


def _reporter(shared: _Shared) -> AppConfigReporter:
    spec = shared.settings.config.spec
    return AppConfigReporter(
        api=shared.api,
        applications=shared.applications,
        heads=shared.heads,
        mirrors=shared.mirrors,
        configs=shared.configs,
        pace=Pace(spec.app_config_sync_interval or _DEFAULT_EVERY),
        piped_id=spec.piped_id,
        selector=spec.app_selector,
    )


def _wakeups(shared: _Shared, *others: Pace) -> WakeupStream:
    applications, deployments = shared.applications.pace, shared.deployments.pace
    commands = shared.commands.pace
    return WakeupStream(
        shared.api,
        paces={
            Wakeup.CONNECTED: (applications, deployments, commands, *others),
            Wakeup.APPLICATIONS: (applications,),
            Wakeup.DEPLOYMENTS: (deployments,),
            Wakeup.COMMANDS: (commands,),
        },
        repositories=shared.heads,
    )


def _keys(settings: PipedSettings) -> KeyPair | None:
    management = settings.config.spec.secret_management
    return key_pair(management) if management is not None else None


def _decrypt(keys: KeyPair | None) -> Callable[[str], str] | None:
    return partial(hybrid.decrypt, keys.private) if keys else None


def _git_access(settings: PipedSettings) -> GitAccess:
    git = settings.config.spec.git
    return GitAccess(
        username=git.username,
        email=git.email,
        password=git_password(git),
        ssh_key=ssh_key(git),
        ssh_host=git.host,
        ssh_host_name=git.host_name,
        ssh_config_file=git.ssh_config_file_path,
    )


def _metrics(settings: PipedSettings) -> CollectorRegistry | None:
    """What piped counts, with the labels that tell it from the others of its project."""
    if not settings.with_metrics:
        return None
    inner, shown = CollectorRegistry(), CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=inner)
    labels = {
        "pipecd_component": "piped",
        "project": settings.config.spec.project_id,
        "piped": settings.config.spec.piped_id,
        "piped_version": build_version(),
        "launcher_version": settings.launcher_version,
    }
    shown.register(Labelled(inner, labels))
    return shown
