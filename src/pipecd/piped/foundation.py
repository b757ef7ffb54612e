# SPDX-License-Identifier: Apache-2.0
"""What the parts of the agent stand on: the settings, the control plane, Git, what is known."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from pipecd.config.catalog import Catalog
from pipecd.config.piped import git_password, piped_key, ssh_key
from pipecd.config.read import PipedConfig
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Mirrors, Repository, open_mirrors
from pipecd.observe.deployments import (
    DeploymentStatuses,
    DeploymentTelemetry,
    DeploymentTraces,
)
from pipecd.observe.metrics import ConstantLabels
from pipecd.observe.version import build_version
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.deploy.context import logs_directory
from pipecd.piped.livestate.announce import Announcer
from pipecd.piped.notify.message import ConsoleLinks
from pipecd.piped.notify.notifier import Notifier, PipedIdentity, create_subscribers
from pipecd.piped.notify.outbox import NotificationMetrics
from pipecd.piped.notify.spool import Spool
from pipecd.piped.planning.baseline import Baselines, IgnoredCommits
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.host import PLUGINS_DIRECTORY
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.tool_registry import ToolRegistry
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.sources import Sources
from pipecd.program.dirlock import DirectoryInUse, lock_directory
from pipecd.proto.service.piped_pb2 import ReportPipedMetaResponse
from pipecd.secrets.decrypter import Decrypter, open_decrypter

log = structlog.get_logger()

# Between two tries to have the workspace to oneself, in seconds.
_LOOK_AGAIN = 0.2


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


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What most parts need."""

    settings: PipedSettings
    api: ControlPlaneClient
    mirrors: Mirrors
    applications: ApplicationCache
    deployments: DeploymentCache
    commands: CommandCache
    heads: RepositoryHeads
    configs: ApplicationConfigs
    sources: Sources
    baselines: Baselines
    metadata: MetadataStore
    callbacks: Callbacks
    notifier: Notifier
    telemetry: DeploymentTelemetry
    states: SyncStates


def share(
    settings: PipedSettings,
    api: ControlPlaneClient,
    mirrors: Mirrors,
    catalog: Catalog,
    decrypter: Decrypter | None,
    notifier: Notifier,
) -> Shared:
    """Makes what most parts need."""
    configs = ApplicationConfigs(catalog)
    commands, metadata = CommandCache(api), MetadataStore(api)
    applications, deployments = ApplicationCache(api), DeploymentCache(api)
    callbacks = Callbacks(
        api,
        commands=commands,
        metadata=metadata,
        tools=ToolRegistry(settings.tools_dir or settings.workspace / "tools"),
        logs=partial(logs_directory, settings.workspace),
        git=mirrors.environment.variables,
    )
    if decrypter is not None:
        callbacks.masks.all = decrypter.known
    return Shared(
        settings=settings,
        api=api,
        mirrors=mirrors,
        applications=applications,
        deployments=deployments,
        commands=commands,
        heads=RepositoryHeads(mirrors),
        configs=configs,
        sources=Sources(mirrors, configs, decrypt=decrypter and decrypter.decrypt),
        baselines=Baselines(IgnoredCommits(settings.workspace / "trigger" / "seen.json")),
        metadata=metadata,
        callbacks=callbacks,
        notifier=notifier,
        telemetry=DeploymentTelemetry(
            DeploymentStatuses(lambda: deployments.all),
            DeploymentTraces(_resource(settings), api.export_traces),
        ),
        states=SyncStates(api, applications, deployments, on_change=Announcer(notifier).heard),
    )


def connect(settings: PipedSettings) -> AbstractAsyncContextManager[ControlPlaneClient]:
    spec = settings.config.spec
    return ControlPlaneClient.connect(
        spec.api_address,
        project=spec.project_id,
        piped=spec.piped_id,
        key=partial(piped_key, spec),
        insecure=settings.insecure,
        cert_file=settings.cert_file,
    )


async def claim_workspace(settings: PipedSettings, opened: AsyncExitStack) -> None:
    """Two pipeds would delete each other's files; one that is about to end is waited for."""
    clock, told = asyncio.get_running_loop().time, False
    ends_at = clock() + settings.grace
    elsewhere = "choose another directory with --workspace-dir"
    while True:
        try:
            opened.enter_context(
                lock_directory(settings.workspace, program="piped", elsewhere=elsewhere)
            )
        except DirectoryInUse as e:
            if clock() >= ends_at:
                raise
            if not told:
                log.warning("waiting for another piped to end", error=str(e))
            told = True
        else:
            return
        await asyncio.sleep(_LOOK_AGAIN)


def mirrors(settings: PipedSettings) -> AbstractAsyncContextManager[Mirrors]:
    repositories = settings.config.spec.repositories
    return open_mirrors(
        [Repository(r.repo_id, r.remote, r.branch) for r in repositories],
        directory=settings.workspace / "git",
        credentials=_git_credentials(settings),
    )


def _git_credentials(settings: PipedSettings) -> GitCredentials:
    git = settings.config.spec.git
    return GitCredentials(
        username=git.username,
        email=git.email,
        password=git_password(git),
        ssh_key=ssh_key(git),
        ssh_host=git.host,
        ssh_host_name=git.host_name,
        ssh_config_file=git.ssh_config_file_path,
    )


async def decrypter(settings: PipedSettings) -> Decrypter | None:
    """What decrypts the secrets of applications, if piped has keys for it."""
    management = settings.config.spec.secret_management
    return await asyncio.to_thread(open_decrypter, management) if management else None


async def notifier(
    settings: PipedSettings,
    known: ReportPipedMetaResponse,
    counted: CollectorRegistry,
    opened: AsyncExitStack,
) -> Notifier:
    """Makes the one who tells people, whose connections end with `opened`."""
    spec = settings.config.spec
    client = await opened.enter_async_context(
        httpx2.AsyncClient(headers={"User-Agent": f"pipecd/{build_version()}"})
    )
    console = ConsoleLinks(spec.web_address or known.web_base_url, spec.project_id)
    spool = await asyncio.to_thread(Spool.open, settings.workspace / "notifications.jsonl")
    opened.callback(spool.close)
    return Notifier(
        PipedIdentity(spec.project_id, spec.piped_id, known.name),
        create_subscribers(
            spec.notifications, console, client, spool, NotificationMetrics(counted)
        ),
        spool,
    )


def metrics(settings: PipedSettings, counted: CollectorRegistry) -> CollectorRegistry | None:
    """What the parts count, with the labels that tell this piped from the others of its project."""
    if not settings.with_metrics:
        return None
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=counted)
    labels = {
        "pipecd_component": "piped",
        "project": settings.config.spec.project_id,
        "piped": settings.config.spec.piped_id,
        "piped_version": build_version(),
        "launcher_version": settings.launcher_version,
    }
    shown = CollectorRegistry()
    shown.register(ConstantLabels(counted, labels))
    return shown


def _resource(settings: PipedSettings) -> dict[str, str]:
    """Who sends traces, in the words that collectors know."""
    spec = settings.config.spec
    return {
        "service.name": "piped",
        "service.namespace": spec.project_id,
        "service.instance.id": spec.piped_id,
        "project-id": spec.project_id,
        "piped-id": spec.piped_id,
    }
