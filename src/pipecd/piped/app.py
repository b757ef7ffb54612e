# SPDX-License-Identifier: Apache-2.0
"""The whole agent on one screen: settings in, parts wired, one task for each of them."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from pipecd.config.catalog import load_catalog
from pipecd.observe.admin import admin_server, standard_pages
from pipecd.observe.log import hiding
from pipecd.piped import foundation, wiring
from pipecd.piped.command_handlers import (
    RestartHandler,
    RestartRequested,
    StageCommandHandler,
    UnknownApplicationHandler,
)
from pipecd.piped.foundation import PipedSettings
from pipecd.piped.reporting.heartbeat import Heartbeat, piped_meta

__all__ = ["PipedSettings", "run_piped"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()


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
    await foundation.claim_workspace(settings, opened)
    spec, counted = settings.config.spec, CollectorRegistry()
    registry = foundation.metrics(settings, counted)
    await _open_admin(settings, registry, opened)
    api = await opened.enter_async_context(foundation.connect(settings))
    decrypter, catalog = await foundation.decrypter(settings), load_catalog()
    public_key = decrypter.public_key if decrypter else b""
    heartbeat = Heartbeat(
        api=api,
        meta=piped_meta(settings.config, catalog, public_key=public_key),
        metrics=lambda: generate_latest(registry) if registry is not None else b"",
    )
    notifier = await foundation.notifier(settings, await heartbeat.register(), counted, opened)
    mirrors = await opened.enter_async_context(foundation.mirrors(settings))
    shared = foundation.share(settings, api, mirrors, catalog, decrypter, notifier)
    opened.enter_context(hiding(shared.callbacks.masks.all.hide))
    counted.register(shared.telemetry.statuses)
    counted.register(shared.callbacks.plugin_metrics)
    heartbeat.on_reported = shared.telemetry.statuses.reported
    opened.push_async_callback(shared.telemetry.traces.shutdown)
    plugins = await wiring.plugins(shared, opened)
    reporter, events = wiring.reporter(shared), wiring.events(shared)
    parts = (
        heartbeat,
        notifier,
        shared.applications,
        shared.deployments,
        shared.commands,
        shared.heads,
        wiring.wakeups(shared, events.schedule, heartbeat.schedule, reporter.schedule),
        wiring.trigger(shared),
        wiring.deployer(shared, plugins),
        shared.states,
        wiring.livestates(shared, plugins),
        wiring.previewer(shared, plugins, counted),
        reporter,
        events,
        RestartHandler(shared.commands),
        StageCommandHandler(api=api, commands=shared.commands),
        UnknownApplicationHandler(shared.commands, shared.applications),
    )
    async with asyncio.TaskGroup() as loops:
        for part in parts:
            loops.create_task(part.run(), name=type(part).__name__)
        log.info("piped is running", piped=spec.piped_id, project=spec.project_id)
        if ready is not None:
            ready()


async def _open_admin(
    settings: PipedSettings, registry: CollectorRegistry | None, opened: AsyncExitStack
) -> None:
    if settings.admin_port is not None:
        pages = standard_pages(registry)
        admin = admin_server(pages, host=settings.admin_host, port=settings.admin_port)
        await opened.enter_async_context(admin)
