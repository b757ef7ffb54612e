# SPDX-License-Identifier: Apache-2.0
"""The control plane: settings, stores, use cases, servers and their ports, background jobs."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.controlplane.api.api_service import api_table
from pipecd.controlplane.api.gateway import TraceCollector, TraceForwarder, authz_table
from pipecd.controlplane.api.grpc_web import GrpcWeb
from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.api.rest import PREFIX as REST_PREFIX
from pipecd.controlplane.api.rest import create_rest
from pipecd.controlplane.api.rest.openapi import openapi_document
from pipecd.controlplane.api.web_service import web_table
from pipecd.controlplane.auth.setup_token import new_setup_token
from pipecd.controlplane.auth.sso import shared_sso_configs
from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.console.first_project import PATH as FIRST_PROJECT_PATH
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs import JobMetrics, background_jobs, run_jobs
from pipecd.controlplane.operator.metrics import InstallationMetrics
from pipecd.controlplane.operator.pages import create_operator_pages
from pipecd.controlplane.operator.socket import operator_socket, socket_path
from pipecd.controlplane.stores import open_stores
from pipecd.controlplane.usecases import ConfigProject, UseCases, build_use_cases
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.api_keys import ApiKeyUseCases
from pipecd.controlplane.usecases.encryption_key import check_encryption_key
from pipecd.controlplane.usecases.installation import InstallationUseCases
from pipecd.controlplane.usecases.projects import ProjectUseCases, StaticAdmin
from pipecd.controlplane.usecases.readiness import Readiness
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import (
    PathPrefixRouter,
    RequestMetrics,
    WebServer,
    http_server,
    single_page_app,
)
from pipecd.controlplane.webhooks.routes import PREFIX as WEBHOOK_PREFIX
from pipecd.controlplane.webhooks.routes import create_webhooks
from pipecd.model.address import Networks, parse_networks
from pipecd.model.clock import utc_now
from pipecd.model.errors import AlreadyExists, Conflict, Unavailable, UserMistake
from pipecd.model.ids import new_id
from pipecd.observe.admin import Page, admin_server, standard_pages
from pipecd.observe.metrics import ServerMetrics, StoreMetrics
from pipecd.observe.telemetry import Telemetry
from pipecd.wire.admission import Admission, ConnectionLimits
from pipecd.wire.grpc_connections import limited_connections
from pipecd.wire.multiplexer import RelayedClients, multiplexed_port, tls_context
from pipecd.wire.outbound import OutboundPolicy
from pipecd.wire.server import UNIX, ServerOptions, TlsFiles, grpc_server
from pipecd.wire.table import RpcTable

log = structlog.get_logger()


@dataclass(frozen=True)
class Ports:
    """A port for each server, as in upstream's layout."""

    piped_api: int
    web_api: int
    http: int
    api: int
    admin: int
    envoy_authz: int


@dataclass(frozen=True)
class ServerSettings:
    """The settings of `pipecd server`; `spec` is the configuration file.

    `port` serves HTTP and gRPC together, `ports` has a port for each server; either may be absent.
    `trace_collector` receives the traces of pipeds, which are dropped without one, and with
    `traces` those of this server too.
    `cache_address` is the Redis that all replicas share; a single server needs none.
    `trusted_proxies` are the proxies whose `X-Forwarded-For` is trusted.
    `static_dir` has another console, such as upstream's, to serve instead of the built-in one.
    `operator_port` serves the operator pages, which need no password, on `operator_host`.
    `first_project` and its administrator are created if the installation has no project.
    `encryption_key_file` is the file in messages; with `new_encryption_key` a key is accepted that
    is not the one that the database was used with.
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
    admin_host: str = ""
    operator_host: str = "127.0.0.1"
    operator_port: int | None = None
    first_project: tuple[str, StaticAdmin] | None = None
    encryption_key_file: str = "--encryption-key-file"
    new_encryption_key: bool = False


@dataclass(frozen=True)
class OpsSettings:
    """The settings of `pipecd ops`; the operator pages listen on `host` and `port`."""

    spec: ControlPlaneSpec
    host: str
    port: int
    admin_host: str
    admin_port: int
    metrics: bool = True
    cache_address: str = ""


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane; `port` is the shared port that was bound.

    `setup_link` opens the page that creates the first project; empty if there is a project.
    """

    cases: UseCases
    stores: Stores
    bus: Bus
    port: int
    setup_link: str = ""


@dataclass(frozen=True)
class Operations:
    """A running `pipecd ops`; the ports are those that were bound."""

    stores: Stores
    port: int
    admin_port: int


@asynccontextmanager
async def control_plane(settings: ServerSettings) -> AsyncGenerator[ControlPlane, None]:
    """Opens the stores, builds the use cases, and starts the servers and the background jobs.

    At the end everything is closed in the opposite order.
    """
    async with AsyncExitStack() as stack:
        collector = None
        if settings.trace_collector:
            connection = TraceCollector.connect(settings.trace_collector)
            collector = await stack.enter_async_context(connection)
        telemetry = _create_telemetry(settings, collector)
        if telemetry.tracer is not None:
            stack.push_async_callback(telemetry.tracer.tracing.shutdown)

        opened = await stack.enter_async_context(
            open_stores(settings.spec, settings.cache_address, telemetry)
        )
        stores, bus = opened.stores, opened.bus
        await check_encryption_key(
            stores,
            settings.encryption_key,
            settings.encryption_key_file,
            is_new=settings.new_encryption_key,
        )
        cases = build_use_cases(
            stores,
            bus,
            address=settings.spec.address,
            encryption_key=settings.encryption_key,
            projects_from_config=projects_from_config(settings.spec),
        )

        export = collector.export if collector else None
        traces = TraceForwarder(cases.credentials, export, settings.trusted_proxies)
        installation = InstallationMetrics(stores)
        servers = _Servers(settings, cases, opened.readiness, telemetry, traces, installation)
        port = await servers.start(stack)
        opened.readiness.ports_are_open()
        await servers.start_for_operator(stack)
        link = await _prepare_first_project(settings, cases, port)

        background = {"bus": bus.run(), "use cases": cases.run()}
        if settings.with_ops:
            metrics = telemetry.metrics
            job_metrics = JobMetrics(metrics.registry, "server") if metrics else None
            jobs = background_jobs(stores, bus, settings.spec.insight_collector)
            background["jobs"] = run_jobs(stores.leases, new_id(), jobs, metrics=job_metrics)
        async with _in_background(background):
            yield ControlPlane(cases, stores, bus, port, link)


@asynccontextmanager
async def operations(settings: OpsSettings) -> AsyncGenerator[Operations, None]:
    """Runs the background jobs, the operator pages and the admin server in a process of its own."""
    async with AsyncExitStack() as stack:
        registry = CollectorRegistry()
        telemetry = Telemetry(store_metrics=StoreMetrics(registry, "ops"))
        try:
            opened = await stack.enter_async_context(
                open_stores(settings.spec, settings.cache_address, telemetry)
            )
        except Unavailable as e:
            if settings.spec.datastore.type != "SQLITE":
                raise
            raise UserMistake(
                e.message,
                hint="on SQLite `pipecd server` runs the background jobs itself, and with "
                "--operator-port also the operator pages; `pipecd ops` needs MySQL or PostgreSQL",
            ) from e
        stores, bus = opened.stores, opened.bus
        endings = SessionEndings(stores.session_endings, bus)
        projects = ProjectUseCases(
            stores, bus, Access(stores), endings, b"", projects_from_config(settings.spec)
        )

        port = await _start_operator_pages(
            stack, projects, settings.spec, settings.host, settings.port
        )
        pages = standard_pages(None, opened.readiness.page)
        if settings.metrics:
            ProcessCollector(registry=registry)
            installation = InstallationMetrics(stores)

            async def metrics() -> bytes:
                return generate_latest(registry) + await installation.page()

            pages["/metrics"] = Page(metrics, CONTENT_TYPE_LATEST)
        admin_port = await stack.enter_async_context(
            admin_server(pages, host=settings.admin_host, port=settings.admin_port)
        )
        opened.readiness.ports_are_open()

        jobs = background_jobs(stores, bus, settings.spec.insight_collector)
        running = run_jobs(stores.leases, new_id(), jobs, metrics=JobMetrics(registry, "ops"))
        async with _in_background({"bus": bus.run(), "jobs": running}):
            yield Operations(stores, port, admin_port)


@dataclass(frozen=True)
class _Servers:
    """The servers of a control plane: gRPC, HTTP and admin, each on its port or all on one."""

    settings: ServerSettings
    cases: UseCases
    readiness: Readiness
    telemetry: Telemetry
    traces: TraceForwarder
    installation_metrics: InstallationMetrics

    async def start(self, stack: AsyncExitStack) -> int:
        """Listens on the configured ports; returns the shared port, or 0 if there is none."""
        settings, cases, metrics = self.settings, self.cases, self.telemetry.metrics
        observer = self.telemetry.rpc_observer
        on_created = metrics.deployment_created if metrics else None
        on_takeover = metrics.piped_taken_over if metrics else None
        piped_rpcs = piped_table(
            cases,
            observer=observer,
            on_created=on_created,
            on_takeover=on_takeover,
            proxies=settings.trusted_proxies,
        )
        api_rpcs = api_table(cases, observer=observer, proxies=settings.trusted_proxies)
        web_rpcs = web_table(cases, observer=observer)
        if self.telemetry.store_metrics is not None:
            self.telemetry.store_metrics.streams("wakeups", piped_rpcs.open_streams)
        spec = settings.spec.connections
        admission = Admission(
            ConnectionLimits(
                spec.max_waiting, spec.max_waiting_per_address, settings.trusted_proxies
            )
        )
        clients = RelayedClients()
        for table in (piped_rpcs, api_rpcs, web_rpcs):
            table.report_authenticated(clients.authenticated)
        web = self.create_web_server(web_rpcs, api_rpcs, admission)
        stack.push_async_callback(web.stop)

        async def serve(handlers: Sequence[grpc.GenericRpcHandler], host: str, port: int) -> int:
            server = grpc_server(
                handlers,
                host=host,
                port=port,
                tls=None if host.startswith(UNIX) else settings.tls,
                grace=settings.grace_period,
                options=ServerOptions(settings.reflection, self.readiness.is_ready),
            )
            return await stack.enter_async_context(server)

        if (ports := settings.ports) is not None:
            bound = [
                await serve([piped_rpcs, self.traces], settings.host, ports.piped_api),
                await serve([web_rpcs], settings.host, ports.web_api),
                await serve([api_rpcs], settings.host, ports.api),
            ]
            await stack.enter_async_context(
                limited_connections(bound, admission, (piped_rpcs, web_rpcs, api_rpcs))
            )
            await serve([authz_table(cases)], settings.host, ports.envoy_authz)
            http = http_server(web, host=settings.host, port=ports.http)
            await stack.enter_async_context(http)
            pages = standard_pages(metrics.registry if metrics else None, self.readiness.page)
            if metrics:
                # On a path of its own: every replica has the same.
                body = self.installation_metrics.page
                pages["/metrics/pipeds"] = Page(body, CONTENT_TYPE_LATEST)
            admin_host = settings.admin_host or settings.host
            admin = admin_server(pages, host=admin_host, port=ports.admin)
            await stack.enter_async_context(admin)
        if settings.port is None:
            return 0
        # The path of a Unix socket must be short; that of a data directory may be too long.
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pipecd-"))
        socket = Path(directory) / "grpc.sock"
        await serve([piped_rpcs, api_rpcs, web_rpcs, self.traces], f"{UNIX}{socket}", 0)
        tls = tls_context(settings.tls) if settings.tls else None
        shared = multiplexed_port(
            web.protocol,
            socket,
            host=settings.host,
            port=settings.port,
            tls=tls,
            admission=admission,
            clients=clients,
        )
        return await stack.enter_async_context(shared)

    async def start_for_operator(self, stack: AsyncExitStack) -> None:
        """Serves the operator pages, and on SQLite the socket for commands of the operator."""
        settings, cases, spec = self.settings, self.cases, self.settings.spec
        if settings.operator_port is not None:
            await _start_operator_pages(
                stack, cases.projects, spec, settings.operator_host, settings.operator_port
            )
        if spec.datastore.type == "SQLITE":
            path = socket_path(Path(spec.datastore.config.path))
            installation = create_installation(cases.projects, cases.api_keys, spec)
            await stack.enter_async_context(operator_socket(path, installation))

    def create_web_server(
        self, web_rpcs: RpcTable[User], api_rpcs: RpcTable[ApiKeyCaller], admission: Admission
    ) -> WebServer:
        """Routes HTTP requests to gRPC-Web, webhooks, REST and the console."""
        settings, cases, spec = self.settings, self.cases, self.settings.spec
        console = create_console(
            cases,
            cases.bus,
            insecure_cookie=settings.insecure_cookie,
            sso=SsoSettings(
                spec.address,
                spec.state_key,
                settings.encryption_key,
                shared_sso_configs(spec.shared_sso_configs),
                OutboundPolicy(parse_networks(spec.outbound.allowed_networks)),
            ),
            proxies=settings.trusted_proxies,
            api_document=openapi_document(),
        )
        if self.telemetry.store_metrics is not None:
            open_streams = console.state.live_updates.open_streams
            self.telemetry.store_metrics.streams("console", open_streams)
        pages: ASGIApp = console
        if settings.static_dir is not None:
            pages = PathPrefixRouter({"/auth/": console}, single_page_app(settings.static_dir))
        app: ASGIApp = PathPrefixRouter(
            {
                WEBHOOK_PREFIX: create_webhooks(cases.webhooks),
                REST_PREFIX: create_rest(api_rpcs, cases.api_keys.verify, settings.trusted_proxies),
            },
            pages,
        )
        if self.telemetry.metrics is not None:
            app = RequestMetrics(app, self.telemetry.metrics.http.responded)
        grpc_web = GrpcWeb(web_rpcs)
        router = PathPrefixRouter(dict.fromkeys(grpc_web.prefixes(), grpc_web), app)
        return WebServer(router, admission)


@asynccontextmanager
async def _in_background(
    coroutines: Mapping[str, Coroutine[Any, Any, None]],
) -> AsyncGenerator[None, None]:
    """Runs the named coroutines until the end of the context; the failure of one ends it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine, name=name) for name, coroutine in coroutines.items()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _start_operator_pages(
    stack: AsyncExitStack, projects: ProjectUseCases, spec: ControlPlaneSpec, host: str, port: int
) -> int:
    """Serves the operator pages; returns the bound port."""
    shared_sso = [shared.name for shared in spec.shared_sso_configs]
    web = WebServer(create_operator_pages(projects, shared_sso=shared_sso))
    stack.push_async_callback(web.stop)
    return await stack.enter_async_context(http_server(web, host=host, port=port))


def create_installation(
    projects: ProjectUseCases, api_keys: ApiKeyUseCases, spec: ControlPlaneSpec
) -> InstallationUseCases:
    """Creates the operations of the operator."""
    shared_sso = frozenset(shared.name for shared in spec.shared_sso_configs)
    return InstallationUseCases(projects, api_keys, shared_sso)


async def _prepare_first_project(settings: ServerSettings, cases: UseCases, port: int) -> str:
    """Creates the first project of the settings, or returns the link of the page that does."""
    if await cases.projects.list_all():
        return ""
    if settings.first_project is not None:
        id, admin = settings.first_project
        # Another replica may have been first.
        with suppress(AlreadyExists, Conflict):
            await cases.projects.add_first(id, admin)
            log.info("first project created", project=id, username=admin.username)
        return ""
    address = settings.spec.address
    if not address:
        port = port or (settings.ports.http if settings.ports else 0)
        # The port without TLS is not shared.
        scheme = "https" if settings.tls and settings.port is not None else "http"
        address = f"{scheme}://localhost:{port}"
    token = new_setup_token(settings.encryption_key, utc_now())
    return f"{address.rstrip('/')}{FIRST_PROJECT_PATH}?token={token}"


def projects_from_config(spec: ControlPlaneSpec) -> Sequence[ConfigProject]:
    return [
        ConfigProject(p.id, p.static_admin.username, p.static_admin.password_hash, p.desc)
        for p in spec.projects
    ]


def _create_telemetry(settings: ServerSettings, collector: TraceCollector | None) -> Telemetry:
    metrics = ServerMetrics.new() if settings.metrics else None
    store_metrics = StoreMetrics(metrics.registry, "server") if metrics else None
    if not settings.traces:
        return Telemetry(metrics, store_metrics)
    if collector is None:
        raise UserMistake("--traces needs a trace collector", hint="add --trace-collector-address")
    try:
        from pipecd.observe.tracing import RpcTracer, Tracing  # noqa: PLC0415 - an extra.
    except ImportError as e:
        raise UserMistake(
            "--traces needs OpenTelemetry",
            hint="install the extra tracing of pipecd, from the source that it came from",
        ) from e
    tracing = Tracing({"service.name": "pipecd-server"}, collector.export)
    return Telemetry(metrics, store_metrics, RpcTracer(tracing))
