# SPDX-License-Identifier: Apache-2.0
"""Turns a pending deployment into a planned one, or says why that is not possible."""

import asyncio
from dataclasses import replace

import structlog

from pipecd.config.duration import Duration
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.piped.deploy.desk import Desk
from pipecd.piped.deploy.stop import TIME_IS_UP, Stop, until_stopped
from pipecd.piped.planning.gather import Plan, Planning, Running, last_success
from pipecd.piped.pluginhost.plugin import PluginDied
from pipecd.proto.model.deployment_pb2 import Deployment

log = structlog.get_logger()

# Every question to a plugin has an end of its own, and so has every program of git.
_AT_MOST = 30 * 60.0
_TRIES = 3


class Planner:
    """One pending deployment on its way to a plan."""

    def __init__(self, desk: Desk, deployment: Deployment, stop: asyncio.Future[Stop]) -> None:
        self._desk, self._deployment, self._stop = desk, deployment, stop
        self._reports = desk.reports(deployment)

    async def run(self) -> bool:
        """Whether there is a plan now; without one the deployment is completed."""
        running = await self._running()
        work = asyncio.create_task(self._plan(running), name="plan")
        try:
            ended = await until_stopped(work, self._stop, at_most=_AT_MOST)
        except PluginDied as e:
            return await self._failed(f"{e}; given up after {_TRIES} tries")
        except Unavailable:
            # It is waited for, as long as it takes; whoever waits is told.
            raise
        except PipecdError as e:
            return await self._failed(self._desk.callbacks.masks.hide(self._deployment.id, str(e)))
        if ended == TIME_IS_UP:
            return await self._failed(f"there was no plan after {Duration(_AT_MOST)}")
        if isinstance(ended, Stop):
            reason = f"Deployment was cancelled by {ended.by} while planning"
            await self._reports.completed(DeploymentStatus.CANCELLED, reason, by=ended.by)
            return False
        plan = self._without_secrets(ended)
        await self._reports.planned(plan, running)
        log.info("deployment planned", summary=plan.summary)
        return True

    def _without_secrets(self, plan: Plan) -> Plan:
        """The plan as it is shown; plugins say in it what they saw in the sources."""
        hide = self._desk.callbacks.masks.of(self._deployment.id).hide
        for stage in plan.stages:
            stage.desc = hide(stage.desc)
        for version in plan.versions:
            version.version, version.name = hide(version.version), hide(version.name)
            version.url = hide(version.url)
        return replace(plan, summary=hide(plan.summary))

    async def _failed(self, why: str) -> bool:
        reason = f"Unable to plan the deployment ({why})"
        await self._reports.completed(DeploymentStatus.FAILURE, reason)
        return False

    async def _plan(self, running: Running | None) -> Plan:
        """The plan; a plugin that dies over it is asked again when it is back."""
        for _ in range(_TRIES - 1):
            try:
                return await self._plan_once(running)
            except PluginDied as e:
                await self._reports.waiting(f"Planned again as soon as the plugin is back: {e}")
        return await self._plan_once(running)

    async def _plan_once(self, running: Running | None) -> Plan:
        sources = self._desk.masked_sources(self._deployment.id)
        desk = self._desk
        planning = Planning(sources, desk.plugins, targets=desk.targets, now=desk.now)
        into = self._desk.sources_of(self._deployment.id) / "plan"
        return await planning.plan(self._deployment, running, into)

    async def _running(self) -> Running | None:
        """What runs now, as the control plane remembers it."""
        return await last_success(self._desk.api, self._deployment.application_id)
