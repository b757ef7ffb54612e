# SPDX-License-Identifier: Apache-2.0
"""The whole control plane on one screen: stores, then use cases, then doors. Wiring only."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.controlplane.api.api_service import api_table
from pipecd.controlplane.api.gateway import TraceCollector, TraceForwarder, authz_table
from pipecd.controlplane.api.grpc_web import GrpcWeb
from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.api.rest import PREFIX as REST
from pipecd.controlplane.api.rest import create_rest
from pipecd.controlplane.api.web_service import web_table
from pipecd.controlplane.auth.request_origin import Networks
from pipecd.controlplane.auth.sso import shared_sso_configs
from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.bus.counted import CountedBus
from pipecd.controlplane.bus.open import RunningBus, choose_bus
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.cache.counted import CountedCache
from pipecd.controlplane.cache.open import choose_cache, open_redis, pinged
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.open import notify_address, open_datastore
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.open import open_filestore
from pipecd.controlplane.filestore.watched import WatchedFiles
from pipecd.controlplane.jobs import JobMetrics, Pace, upkeep
from pipecd.controlplane.operator.metrics import InstallationMetrics
from pipecd.controlplane.operator.pages import create_owner_pages
from pipecd.controlplane.usecases import ConfigProject, UseCases, build_use_cases
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.projects import ProjectUseCases
from pipecd.controlplane.usecases.readiness import Readiness
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import ByPrefix, Counted, WebServer, http_port, site_of
from pipecd.controlplane.webhooks.routes import PREFIX as WEBHOOKS
from pipecd.controlplane.webhooks.routes import create_webhooks
from pipecd.model.errors import Unavailable, UserMistake
from pipecd.model.ids import new_id
from pipecd.observe.admin import Page, admin_server, standard_pages
from pipecd.observe.metrics import ServerMetrics, StoreMetrics
from pipecd.observe.telemetry import Telemetry
from pipecd.wire.server import UNIX, About, TlsFiles, grpc_server
from pipecd.wire.splitter import one_port, tls_context
from pipecd.wire.table import RpcTable

log = structlog.get_logger()

# What several servers on one database lack without a Redis.
WITHOUT_REDIS = {
    "MYSQL": "several replicas need a redis to hear of each other's changes",
    "POSTGRESQL": "several replicas need a redis to share what pipeds tell about themselves",
}


@dataclass(frozen=True)
class Ports:
    """A port for each door, as upstream's layouts have them."""

    piped_api: int
    web_api: int
    http: int
    api: int
    admin: int
    envoy_authz: int


@dataclass(frozen=True)
class ServerSettings:
    """How a control plane is run; its stores are told by `spec`.

    `port` is the one address of pages and gRPC, `ports` the separate ones; either may be absent.
    `trace_collector` is where traces of pipeds are handed on to; without one they are dropped. With
    `traces` it gets those of this server too.
    `cache_address` is the Redis that all replicas share; one server alone needs none.
    `trusted_proxies` stand in front and are believed when they tell whom they speak for.
    `static_dir` holds another console, such as upstream's, to serve in place of our pages.
    """

    spec: ControlPlaneSpec
    encryption_key: bytes
    host: str
    port: int | None = None
    ports: Ports | None = None
    insecure_cookie: bool = False
    tls: TlsFiles | None = None
    metrics: bool = True
    grace_period: float = 30.0
    with_ops: bool = True
    reflection: bool = False
    trace_collector: str = ""
    traces: bool = False
    cache_address: str = ""
    trusted_proxies: Networks = ()
    static_dir: Path | None = None


@dataclass(frozen=True)
class ControlPlane:
    """A control plane that is up; `port` is the one that was bound."""

    cases: UseCases
    stores: Stores
    bus: Bus
    port: int


@asynccontextmanager
async def control_plane(settings: ServerSettings) -> AsyncGenerator[ControlPlane, None]:
    """Opens the stores and the doors, and closes them in the opposite order."""
    async with AsyncExitStack() as opened:
        collector = await _collector(settings, opened)
        telemetry = _telemetry(settings, collector)
        if telemetry.tracer is not None:
            opened.push_async_callback(telemetry.tracer.tracing.shutdown)
        opening = await _open_stores(settings.spec, settings.cache_address, opened, telemetry)
        stores, bus = opening.stores, opening.bus
        cases = build_use_cases(
            stores,
            bus,
            address=settings.spec.address,
            encryption_key=settings.encryption_key,
            projects_from_config=_projects(settings.spec),
        )
        traces = TraceForwarder(cases.credentials, collector.export if collector else None)
        doors = _Doors(settings, cases, opening.ready, telemetry, traces)
        port = await _open_doors(doors, opened)
        async with asyncio.TaskGroup() as loops:
            background = [
                loops.create_task(bus.run(), name="bus"),
                loops.create_task(cases.run(), name="use cases"),
            ]
            if settings.with_ops:
                pace = Pace(
                    JobMetrics(telemetry.metrics.registry, "server") if telemetry.metrics else None
                )
                jobs = upkeep(stores, bus, new_id(), settings.spec.insight_collector, pace)
                background.append(loops.create_task(jobs.run(), name="upkeep"))
            try:
                yield ControlPlane(cases, stores, bus, port)
            finally:
                for task in background:
                    task.cancel()


@dataclass(frozen=True)
class OpsSettings:
    """How the upkeep is run beside the servers; `host` is where the pages of the owner listen."""

    spec: ControlPlaneSpec
    host: str
    port: int
    admin_host: str
    admin_port: int
    metrics: bool = True
    cache_address: str = ""


@dataclass(frozen=True)
class Operations:
    """Upkeep that is going on; the ports are those that were bound."""

    stores: Stores
    port: int
    admin_port: int


@asynccontextmanager
async def operations(settings: OpsSettings) -> AsyncGenerator[Operations, None]:
    """The jobs, the pages of the owner and the figures of the installation, in one process."""
    async with AsyncExitStack() as opened:
        registry = CollectorRegistry()
        telemetry = Telemetry(store_metrics=StoreMetrics(registry, "ops"))
        opening = await _open_stores_beside_servers(settings, opened, telemetry)
        stores, bus = opening.stores, opening.bus
        projects = ProjectUseCases(stores, bus, Access(stores), b"", _projects(settings.spec))
        shared_sso = [shared.name for shared in settings.spec.shared_sso_configs]
        web = WebServer(create_owner_pages(projects, shared_sso=shared_sso))
        opened.push_async_callback(web.stop)
        owner = http_port(web, host=settings.host, port=settings.port)
        port = await opened.enter_async_context(owner)
        pages = standard_pages(None, opening.ready.page)
        if settings.metrics:
            ProcessCollector(registry=registry)
            figures = InstallationMetrics(stores, registry)
            pages["/metrics"] = Page(figures.page, CONTENT_TYPE_LATEST)
        admin = admin_server(pages, host=settings.admin_host, port=settings.admin_port)
        admin_port = await opened.enter_async_context(admin)
        pace = Pace(JobMetrics(registry, "ops"))
        jobs = upkeep(stores, bus, new_id(), settings.spec.insight_collector, pace)
        async with asyncio.TaskGroup() as loops:
            background = [
                loops.create_task(bus.run(), name="bus"),
                loops.create_task(jobs.run(), name="upkeep"),
            ]
            try:
                yield Operations(stores, port, admin_port)
            finally:
                for task in background:
                    task.cancel()


@dataclass(frozen=True)
class _Opening:
    """The stores, the bus between replicas, and whether they answer."""

    stores: Stores
    bus: RunningBus
    ready: Readiness


async def _open_stores_beside_servers(
    settings: OpsSettings, opened: AsyncExitStack, telemetry: Telemetry
) -> _Opening:
    spec = settings.spec
    try:
        return await _open_stores(spec, settings.cache_address, opened, telemetry)
    except Unavailable as e:
        if spec.datastore.type != "SQLITE":
            raise
        raise UserMistake(
            e.message,
            hint="on SQLite `pipecd server` does the upkeep itself, so run only that one; "
            "an ops of its own needs MySQL or PostgreSQL",
        ) from e


async def _open_stores(
    spec: ControlPlaneSpec,
    cache_address: str,
    opened: AsyncExitStack,
    telemetry: Telemetry,
) -> _Opening:
    """The stores, and the bus on which replicas tell each other what changed in them."""
    redis = None
    if cache_address:
        redis = await opened.enter_async_context(open_redis(cache_address))
    elif (lack := WITHOUT_REDIS.get(spec.datastore.type)) is not None:
        log.warning(lack, hint="give all of them the same --cache-address, or run only one")
    database = await opened.enter_async_context(
        open_datastore(spec.datastore, observers=telemetry.store_observers)
    )
    files = await opened.enter_async_context(open_filestore(spec.filestore))
    cache = choose_cache(redis)
    if telemetry.metrics is not None:
        kind = "inmemory" if redis is None else "redis"
        cache = CountedCache(cache, kind, telemetry.metrics.cache_read)
    bus = choose_bus(redis=redis, postgres=notify_address(spec.datastore))
    if telemetry.store_metrics is not None:
        bus = CountedBus(bus, telemetry.store_metrics)
    if telemetry.store_observers:
        files = WatchedFiles(files, telemetry.store_observers)
    stores = create_stores(database, files, cache)
    return _Opening(stores, bus, Readiness(stores, pinged(redis) if redis is not None else None))


def _projects(spec: ControlPlaneSpec) -> Sequence[ConfigProject]:
    return [
        ConfigProject(p.id, p.static_admin.username, p.static_admin.password_hash, p.desc)
        for p in spec.projects
    ]


def _telemetry(settings: ServerSettings, collector: TraceCollector | None) -> Telemetry:
    metrics = ServerMetrics.new() if settings.metrics else None
    store_metrics = StoreMetrics(metrics.registry, "server") if metrics else None
    if not settings.traces:
        return Telemetry(metrics, store_metrics)
    if collector is None:
        raise UserMistake(
            "--traces needs a collector to send them to", hint="add --trace-collector-address"
        )
    try:
        from pipecd.observe.tracing import RpcTracer, Tracing  # noqa: PLC0415 - an extra.
    except ImportError as e:
        raise UserMistake(
            "--traces needs OpenTelemetry", hint="pip install 'pipecd[tracing]'"
        ) from e
    tracing = Tracing({"service.name": "pipecd-server"}, collector.export)
    return Telemetry(metrics, store_metrics, RpcTracer(tracing))


async def _collector(settings: ServerSettings, opened: AsyncExitStack) -> TraceCollector | None:
    if not settings.trace_collector:
        return None
    return await opened.enter_async_context(TraceCollector.connect(settings.trace_collector))


@dataclass(frozen=True)
class _Doors:
    """What is behind everything that listens."""

    settings: ServerSettings
    cases: UseCases
    ready: Readiness
    telemetry: Telemetry
    traces: TraceForwarder


def _web_server(
    doors: _Doors, people: RpcTable[User], external: RpcTable[ApiKeyCaller]
) -> WebServer:
    """Pages and, beside them, the calls of scripts in pages and of programs."""
    settings, cases, telemetry = doors.settings, doors.cases, doors.telemetry
    spec = settings.spec
    sso = SsoSettings(
        spec.address,
        spec.state_key,
        settings.encryption_key,
        shared_sso_configs(spec.shared_sso_configs),
    )
    pages = create_console(
        cases,
        cases.bus,
        insecure_cookie=settings.insecure_cookie,
        sso=sso,
        proxies=settings.trusted_proxies,
    )
    if telemetry.store_metrics is not None:
        telemetry.store_metrics.streams("console", pages.state.live_updates.open_streams)
    calls = GrpcWeb(people)
    site: ASGIApp = pages
    if settings.static_dir is not None:
        site = ByPrefix({"/auth/": pages}, site_of(settings.static_dir))
    others = {
        WEBHOOKS: create_webhooks(cases.webhooks),
        REST: create_rest(external, cases.api_keys.verify),
    }
    visited = ByPrefix(others, site)
    return WebServer(
        ByPrefix(
            dict.fromkeys(calls.prefixes(), calls),
            Counted(visited, telemetry.metrics.http.responded) if telemetry.metrics else visited,
        )
    )


async def _open_doors(doors: _Doors, opened: AsyncExitStack) -> int:
    """Listens everywhere it should; answers the one port, or 0 when there is none."""
    settings, cases, metrics = doors.settings, doors.cases, doors.telemetry.metrics
    created = metrics.deployment_created if metrics else None
    piped = piped_table(cases, observer=doors.telemetry.rpc_observer, on_created=created)
    external = api_table(cases, observer=doors.telemetry.rpc_observer)
    people = web_table(cases, observer=doors.telemetry.rpc_observer)
    if doors.telemetry.store_metrics is not None:
        doors.telemetry.store_metrics.streams("wakeups", piped.open_streams)
    web = _web_server(doors, people, external)
    opened.push_async_callback(web.stop)

    async def serve(handlers: Sequence[grpc.GenericRpcHandler], host: str, port: int) -> None:
        server = grpc_server(
            handlers,
            host=host,
            port=port,
            tls=None if host.startswith(UNIX) else settings.tls,
            grace=settings.grace_period,
            about=About(settings.reflection, doors.ready.is_ready),
        )
        await opened.enter_async_context(server)

    if (ports := settings.ports) is not None:
        await serve([piped, doors.traces], settings.host, ports.piped_api)
        await serve([people], settings.host, ports.web_api)
        await serve([external], settings.host, ports.api)
        await serve([authz_table(cases)], settings.host, ports.envoy_authz)
        http = http_port(web, host=settings.host, port=ports.http)
        await opened.enter_async_context(http)
        pages = standard_pages(metrics.registry if metrics else None, doors.ready.page)
        admin = admin_server(pages, host=settings.host, port=ports.admin)
        await opened.enter_async_context(admin)
    if settings.port is None:
        return 0
    # The path of a socket must be short, which that of a data directory may not be.
    directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="pipecd-"))
    socket = Path(directory) / "grpc.sock"
    await serve([piped, external, people, doors.traces], f"{UNIX}{socket}", 0)
    tls = tls_context(settings.tls) if settings.tls else None
    door = one_port(web.protocol, socket, host=settings.host, port=settings.port, tls=tls)
    return await opened.enter_async_context(door)
