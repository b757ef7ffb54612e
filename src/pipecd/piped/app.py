# SPDX-License-Identifier: Apache-2.0
"""The composition root of piped, top to bottom: settings in, components built, one task for each.

`run_piped` connects to the control plane (`_connect`), opens Git and starts the plugins
(`_open_services`), builds the components (`_build_components`) and runs them in one task group.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.piped import (
    EventWatcherRepoSpec,
    GitSpec,
    PlanPreviewSpec,
    git_password,
    piped_key,
    ssh_key,
)
from pipecd.config.read import PipedConfig, deploy_target_names
from pipecd.config.rendering import RenderingSpec
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Mirrors, Repository, open_mirrors
from pipecd.git.tree_limits import TreeLimits
from pipecd.observe.admin import admin_server, standard_pages
from pipecd.observe.deployments import (
    DeploymentStatuses,
    DeploymentTelemetry,
    DeploymentTraces,
    piped_resource,
)
from pipecd.observe.log import masking
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.cache.wakeups import WakeupStream
from pipecd.piped.command_handlers import (
    RestartHandler,
    RestartRequested,
    StageCommandHandler,
    UnknownApplicationHandler,
)
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.deploy.changes import ChangeReporter
from pipecd.piped.deploy.context import DeploymentContext, logs_directory
from pipecd.piped.deploy.deployer import Deployer
from pipecd.piped.eventwatcher.definitions import DefinitionReader
from pipecd.piped.eventwatcher.event_queue import EventQueue
from pipecd.piped.eventwatcher.pushed_edits import PushedEdits
from pipecd.piped.eventwatcher.repository_updater import (
    EventWatcher,
    RepositoryUpdater,
    UpdaterContext,
)
from pipecd.piped.lease import Lease
from pipecd.piped.livestate.desired_state import DesiredStates
from pipecd.piped.livestate.notifications import HealthNotifier, SyncStatusNotifier
from pipecd.piped.livestate.reader import LiveStateReader
from pipecd.piped.livestate.reporter import LiveStateReporter
from pipecd.piped.livestate.watcher import WatcherContext
from pipecd.piped.notify.message import ConsoleLinks
from pipecd.piped.notify.notifier import Notifier, PipedIdentity, open_subscribers
from pipecd.piped.notify.outbox import NotificationMetrics
from pipecd.piped.notify.spool import Spool
from pipecd.piped.planning.baseline import Baselines, IgnoredCommits
from pipecd.piped.planpreview.builder import ApplicationPreviewer, PreviewBuilder
from pipecd.piped.planpreview.previewer import Previewer, PreviewMetrics
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.host import (
    PLUGIN_DIGESTS,
    PLUGINS_DIRECTORY,
    PluginDownloads,
    PluginHost,
)
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.process import PluginTimeouts
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.pluginhost.tool_registry import ToolRegistry
from pipecd.piped.reporting.app_configs import AppConfigReporter
from pipecd.piped.reporting.exposed_metrics import expose_metrics
from pipecd.piped.reporting.heartbeat import Heartbeat, piped_meta
from pipecd.piped.reporting.plugin_failures import PluginFailureMetrics, PluginFailureReporter
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.previewed_sources import maskable_sources, unmerged_sources
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Sources
from pipecd.piped.standby import report_of, stand_by
from pipecd.piped.state_file import StateFile
from pipecd.piped.trigger.trigger import Trigger
from pipecd.piped.workspace import lock_workspace
from pipecd.program.broken_inputs import BrokenInputs
from pipecd.program.handover import LauncherConnection, Phase, StartOrder
from pipecd.program.workers import WorkerPool
from pipecd.proto.service.wakeups_pb2 import Wakeup
from pipecd.sdk.host import named_variables
from pipecd.sdk.workers import worker_limits
from pipecd.secrets.decrypter import Decrypter, open_decrypter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_DEFAULT_INTERVAL = 60.0


@dataclass(frozen=True)
class PipedSettings:
    """The flags and the configuration of a piped; without an admin port it has no admin server."""

    config: PipedConfig
    workspace: Path
    insecure: bool = False
    cert_file: str = ""
    tools_dir: Path | None = None
    plugins_dir: Path = PLUGINS_DIRECTORY
    redownload_plugins: bool = False
    admin_host: str = ""
    admin_port: int | None = None
    plugin_service_port: int | None = None
    launcher_version: str = ""
    with_metrics: bool = True
    with_traces: bool = True
    grace: float = 30.0
    launcher: LauncherConnection | None = None
    """The connection to the launcher that has started this piped, if one has."""


class Component(Protocol):
    """A part of piped with a task of its own."""

    def run(self) -> Coroutine[Any, Any, None]: ...


async def run_piped(settings: PipedSettings, *, ready: Callable[[], None] | None = None) -> None:
    """Runs until it is cancelled or a user requests a restart; calls `ready` once it runs."""
    spec = settings.config.spec
    try:
        async with AsyncExitStack() as stack:
            connection = await _connect(settings, stack)
            services = await _open_services(connection, stack)
            components = _build_components(connection, services)
            async with asyncio.TaskGroup() as tasks:
                for component in components:
                    tasks.create_task(component.run(), name=type(component).__name__)
                log.info("piped is running", piped=spec.piped_id, project=spec.project_id)
                if settings.launcher is not None:
                    settings.launcher.report(
                        report_of(
                            Phase.RUNNING,
                            settings.config,
                            services.plugins.failures,
                            has_lease=connection.api.lease.epoch > 0,
                        )
                    )
                if ready is not None:
                    ready()
    except* RestartRequested:
        log.info("piped ends because a restart was requested")


@dataclass(frozen=True, kw_only=True)
class _Connection:
    """A piped that is registered with its control plane."""

    settings: PipedSettings
    metrics: CollectorRegistry
    catalog: Catalog
    api: ControlPlaneClient
    decrypter: Decrypter | None
    lease: Lease
    heartbeat: Heartbeat
    notifier: Notifier


async def _connect(settings: PipedSettings, stack: AsyncExitStack) -> _Connection:
    """Connects to the control plane and registers this piped; `stack` closes the connections."""
    spec, metrics = settings.config.spec, CollectorRegistry()
    exposed = None
    if settings.with_metrics:
        exposed = expose_metrics(
            metrics,
            project=spec.project_id,
            piped=spec.piped_id,
            launcher_version=settings.launcher_version,
        )
    lease = await _acquire_lease(
        settings, stack, partial(_open_workspace, settings, stack, exposed)
    )
    api = lease.api
    decrypter, catalog = None, load_catalog()
    if spec.secret_management is not None:
        decrypter = await asyncio.to_thread(open_decrypter, spec.secret_management)
    public_key = decrypter.public_key if decrypter else b""
    heartbeat = Heartbeat(
        api=api,
        meta=piped_meta(settings.config, catalog, public_key=public_key),
        metrics=lambda: generate_latest(exposed) if exposed is not None else b"",
    )
    registered = await heartbeat.register()
    console = ConsoleLinks(spec.web_address or registered.web_base_url, spec.project_id)
    spool = await asyncio.to_thread(Spool.open, settings.workspace / "notifications.jsonl")
    stack.callback(spool.close)
    subscribers = await stack.enter_async_context(
        open_subscribers(spec.notifications, console, spool, NotificationMetrics(metrics))
    )
    identity = PipedIdentity(spec.project_id, spec.piped_id, registered.name)
    notifier = Notifier(identity, subscribers, spool)
    return _Connection(
        settings=settings,
        metrics=metrics,
        catalog=catalog,
        api=api,
        decrypter=decrypter,
        lease=lease,
        heartbeat=heartbeat,
        notifier=notifier,
    )


async def _open_workspace(
    settings: PipedSettings, stack: AsyncExitStack, exposed: CollectorRegistry | None
) -> None:
    """Opens what only one piped of this machine can use: the workspace and the admin port."""
    await lock_workspace(settings.workspace, stack, patience=settings.grace)
    if settings.admin_port is not None:
        pages = standard_pages(exposed)
        admin = admin_server(pages, host=settings.admin_host, port=settings.admin_port)
        await stack.enter_async_context(admin)


async def _acquire_lease(
    settings: PipedSettings, stack: AsyncExitStack, open_workspace: Callable[[], Awaitable[None]]
) -> Lease:
    """Connects to the control plane and opens the workspace as the holder of the lease.

    A piped that the launcher has started beside a running one opens the workspace last.
    """
    spec, launcher = settings.config.spec, settings.launcher
    order = launcher.received_order() if launcher is not None else StartOrder.START
    if order is not None:
        await open_workspace()
    api = await stack.enter_async_context(
        ControlPlaneClient.connect(
            spec.api_address,
            project=spec.project_id,
            piped=spec.piped_id,
            key=partial(piped_key, spec),
            insecure=settings.insecure,
            cert_file=settings.cert_file,
        )
    )
    lease = Lease(
        api=api, piped_id=spec.piped_id, workspace=settings.workspace, grace=settings.grace
    )
    if launcher is not None and order is None:
        order = await stand_by(
            launcher,
            settings.config,
            api,
            plugins_dir=settings.plugins_dir,
            workspace=settings.workspace,
        )
        if order is StartOrder.TAKE_OVER:
            await lease.take_over()
            stack.push_async_callback(lease.release)
            await open_workspace()
            await lease.remove_record_of_loss()
            return lease
        await open_workspace()
    await lease.acquire()
    stack.push_async_callback(lease.release)
    return lease


@dataclass(frozen=True, kw_only=True)
class _Services:
    """What several components share."""

    mirrors: Mirrors
    heads: RepositoryHeads
    configs: ApplicationConfigs
    sources: Sources
    baselines: Baselines
    applications: ApplicationCache
    deployments: DeploymentCache
    commands: CommandCache
    sync_states: SyncStates
    metadata: MetadataStore
    callbacks: Callbacks
    telemetry: DeploymentTelemetry
    plugins: PluginRegistry
    workers: WorkerPool


async def _open_services(connection: _Connection, stack: AsyncExitStack) -> _Services:
    """Opens the Git mirrors and starts the plugins; `stack` closes and stops them."""
    settings, api, decrypter = connection.settings, connection.api, connection.decrypter
    spec, workspace = settings.config.spec, settings.workspace
    mirrors = await stack.enter_async_context(
        open_mirrors(
            [Repository(r.repo_id, r.remote, r.branch) for r in spec.repositories],
            directory=workspace / "git",
            credentials=_git_credentials(spec.git),
            limits=TreeLimits(
                spec.rendering.working_copy_entries, spec.rendering.working_copy_size
            ),
        )
    )
    workers = await stack.enter_async_context(_worker_pool(spec.rendering, workspace))
    applications, deployments = ApplicationCache(api), DeploymentCache(api)
    commands, metadata = CommandCache(api), MetadataStore(api)
    callbacks = Callbacks(
        api,
        commands=commands,
        metadata=metadata,
        tools=ToolRegistry(
            settings.tools_dir or workspace / "tools",
            digests=workspace / "tool-digests.json",
            mirror=spec.tool_mirror,
        ),
        logs=partial(logs_directory, workspace),
        git=mirrors.environment.variables,
        rendering=spec.rendering,
        workers=workers,
    )
    callbacks.plugin_directories = workspace / "plugin-state"
    if decrypter is not None:
        callbacks.masks.all = decrypter.known
    stack.enter_context(masking(callbacks.masks.all.hide))
    resource = piped_resource(project=spec.project_id, piped=spec.piped_id)
    export = api.export_traces if settings.with_traces else None
    telemetry = DeploymentTelemetry(
        DeploymentStatuses(lambda: deployments.all, is_reported=settings.with_metrics),
        DeploymentTraces(resource, export),
    )
    stack.push_async_callback(telemetry.traces.shutdown)
    connection.heartbeat.on_reported = telemetry.statuses.reported
    connection.metrics.register(telemetry.statuses)
    connection.metrics.register(callbacks.plugin_metrics)
    plugins = await stack.enter_async_context(
        PluginHost.start(
            spec.plugins,
            callbacks=callbacks,
            unusable=settings.config.unusable,
            workspace=workspace,
            service_port=settings.plugin_service_port,
            downloads=_plugin_downloads(settings),
            timeouts=PluginTimeouts(grace=settings.grace),
        )
    )
    on_change = SyncStatusNotifier(connection.notifier).on_change
    configs = ApplicationConfigs(connection.catalog)
    return _Services(
        mirrors=mirrors,
        heads=RepositoryHeads(mirrors),
        configs=configs,
        sources=Sources(
            mirrors,
            configs,
            project=spec.project_id,
            decrypt=decrypter and decrypter.decrypt,
            renderer=TemplateRenderer(workers, named_variables(spec.rendering)),
        ),
        baselines=Baselines(IgnoredCommits(workspace / "trigger" / "seen.json")),
        applications=applications,
        deployments=deployments,
        commands=commands,
        sync_states=SyncStates(api, applications, deployments, on_change=on_change),
        metadata=metadata,
        callbacks=callbacks,
        telemetry=telemetry,
        plugins=plugins,
        workers=workers,
    )


def _plugin_downloads(settings: PipedSettings) -> PluginDownloads:
    return PluginDownloads(
        settings.plugins_dir,
        redownload=settings.redownload_plugins,
        digests=settings.workspace / PLUGIN_DIGESTS,
        require_checksum=settings.config.spec.require_checksum,
    )


def _git_credentials(git: GitSpec) -> GitCredentials:
    return GitCredentials(
        username=git.username,
        email=git.email,
        password=git_password(git),
        ssh_key=ssh_key(git),
        ssh_host=git.host,
        ssh_host_name=git.host_name,
        ssh_config_file=git.ssh_config_file_path,
    )


def _worker_pool(rendering: RenderingSpec, workspace: Path) -> WorkerPool:
    """Returns the workers that evaluate the content of repositories."""
    file = StateFile(
        workspace / "workers" / "broken.json",
        "content that broke a worker is evaluated again after a restart",
    )
    broken = BrokenInputs(file.read(BrokenInputs.parse), save=file.write)
    return WorkerPool(worker_limits(rendering), broken=broken)


def _build_components(connection: _Connection, services: _Services) -> Sequence[Component]:
    """Returns everything that runs; none of it does anything before its task starts."""
    settings, api = connection.settings, connection.api
    spec = settings.config.spec
    heartbeat, commands = connection.heartbeat, services.commands
    applications, deployments = services.applications, services.deployments
    app_configs = AppConfigReporter(
        api=api,
        applications=applications,
        commands=commands,
        heads=services.heads,
        mirrors=services.mirrors,
        configs=services.configs,
        schedule=RefreshSchedule(spec.app_config_sync_interval or _DEFAULT_INTERVAL),
        piped_id=spec.piped_id,
        selector=spec.app_selector,
    )
    trigger = Trigger(
        api=api,
        applications=applications,
        deployments=deployments,
        commands=commands,
        heads=services.heads,
        mirrors=services.mirrors,
        configs=services.configs,
        baselines=services.baselines,
        notifier=connection.notifier,
        states=services.sync_states,
        targets=deploy_target_names(settings.config),
        interval=spec.sync_interval or _DEFAULT_INTERVAL,
    )
    connection.metrics.register(PluginFailureMetrics(services.plugins))
    event_watcher = _build_event_watcher(connection, services)
    wakeups = WakeupStream(
        api,
        schedules={
            Wakeup.CONNECTED: (
                *(applications.schedule, deployments.schedule, commands.schedule),
                *(event_watcher.schedule, heartbeat.schedule, app_configs.schedule),
            ),
            Wakeup.APPLICATIONS: (applications.schedule,),
            Wakeup.DEPLOYMENTS: (deployments.schedule,),
            Wakeup.COMMANDS: (commands.schedule,),
            Wakeup.EVENTS: (event_watcher.schedule,),
        },
        heads=services.heads,
        handlers={
            Wakeup.LEASE: connection.lease.handover_requested,
            Wakeup.LEASE_PROBE: connection.lease.probed,
        },
    )
    return (
        connection.lease,
        heartbeat,
        connection.notifier,
        applications,
        deployments,
        commands,
        services.heads,
        wakeups,
        trigger,
        _build_deployer(connection, services),
        services.sync_states,
        PluginFailureReporter(
            api=api, plugins=services.plugins, hide=services.callbacks.masks.all.hide
        ),
        _build_live_states(connection, services),
        _build_previewer(connection, services),
        app_configs,
        event_watcher,
        RestartHandler(commands),
        StageCommandHandler(api=api, commands=commands),
        UnknownApplicationHandler(commands, applications),
    )


def _build_deployer(connection: _Connection, services: _Services) -> Deployer:
    targets = deploy_target_names(connection.settings.config)
    changes = ChangeReporter(
        api=connection.api,
        sources=maskable_sources(services.sources, connection.decrypter),
        plugins=services.plugins,
        masks=services.callbacks.masks,
        targets=targets,
        workspace=connection.settings.workspace,
    )
    context = DeploymentContext(
        api=connection.api,
        deployments=services.deployments,
        commands=services.commands,
        sources=services.sources,
        plugins=services.plugins,
        catalog=connection.catalog,
        targets=targets,
        callbacks=services.callbacks,
        metadata=services.metadata,
        notifier=connection.notifier,
        changes=changes,
        workspace=connection.settings.workspace,
        telemetry=services.telemetry,
        drain=connection.lease.drain,
    )
    return Deployer(context=context, applications=services.applications)


def _build_live_states(connection: _Connection, services: _Services) -> LiveStateReporter:
    directory = connection.settings.workspace / "livestate"
    desired_states = DesiredStates(services.mirrors, services.configs, services.sources, directory)
    live_states = LiveStateReporter(
        applications=services.applications,
        mirrors=services.mirrors,
        context=WatcherContext(
            api=connection.api,
            deployments=services.deployments,
            heads=services.heads,
            desired_states=desired_states,
            reader=LiveStateReader(
                desired_states, services.plugins, deploy_target_names(connection.settings.config)
            ),
            states=services.sync_states,
            health=HealthNotifier(connection.notifier),
        ),
    )
    services.callbacks.on_live_state_changed = live_states.changed
    return live_states


def _build_previewer(connection: _Connection, services: _Services) -> Previewer:
    spec = connection.settings.config.spec
    settings, secrets = spec.plan_preview, spec.secret_management
    return Previewer(
        commands=services.commands,
        builder=PreviewBuilder(
            applications=services.applications,
            heads=services.heads,
            mirrors=services.mirrors,
            configs=services.configs,
            baselines=services.baselines,
            previewer=ApplicationPreviewer(
                api=connection.api,
                sources=services.sources,
                unmerged_sources=unmerged_sources(services.sources, secrets, connection.decrypter),
                plugins=services.plugins,
                masks=services.callbacks.masks,
                targets=deploy_target_names(connection.settings.config),
            ),
        ),
        workspace=connection.settings.workspace,
        workers=settings.worker_num or PlanPreviewSpec().worker_num,
        default_timeout=settings.command_handle_timeout or PlanPreviewSpec().command_handle_timeout,
        metrics=PreviewMetrics(connection.metrics),
    )


def _build_event_watcher(connection: _Connection, services: _Services) -> EventWatcher:
    spec = connection.settings.config.spec
    overrides = {repository.repo_id: repository for repository in spec.event_watcher.git_repos}
    queue = EventQueue(
        connection.api, interval=spec.event_watcher.check_interval or _DEFAULT_INTERVAL
    )
    context = UpdaterContext(
        queue=queue,
        heads=services.heads,
        applications=services.applications,
        workers=services.workers,
        pushed=PushedEdits(connection.settings.workspace / "events" / "pushed.json"),
        token=git_password(spec.git),
    )
    updaters = [
        RepositoryUpdater(
            mirror,
            DefinitionReader(
                mirror,
                services.configs,
                overrides.get(mirror.repository.id, EventWatcherRepoSpec()),
            ),
            context,
        )
        for mirror in services.mirrors
    ]
    return EventWatcher(queue, updaters)
