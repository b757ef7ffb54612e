# SPDX-License-Identifier: Apache-2.0
"""What a client reads of an installation: deployments, logs, commands, events, applications."""

import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from faults.whole_installation import WholeInstallation
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.chain_pb2 import DeploymentChain
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import web_pb2

_CALL_SECONDS = 15.0
_NEWEST, _PAGE, _EVENTS_PAGE = 60, 200, 500
# A clock that jumped puts what changed anywhere into the list.
_ALL_EVERY_SECONDS = 5.0
StageLogs = dict[tuple[str, str], list[str]]


@dataclass
class Reader:
    """Reads lists page by page, and what is final only once."""

    installed: WholeInstallation
    deployments: dict[str, Deployment] = field(default_factory=dict[str, Deployment])
    """As they were read last."""
    commands: dict[str, Command] = field(default_factory=dict[str, Command])
    """Those that are handled."""
    previews: dict[str, PlanPreviewCommandResult] = field(
        default_factory=dict[str, PlanPreviewCommandResult]
    )
    """The results of plan previews that were read, by their command."""
    _all_read_at: float = float("-inf")

    async def newest(self, replica: int) -> list[Deployment]:
        """The deployments that were updated last."""
        async with self.installed.api(replica) as api:
            request = pb.ListDeploymentsRequest(limit=_NEWEST)
            answer = await api.ListDeployments(request, timeout=_CALL_SECONDS)
        return self._store(answer.deployments)

    async def changed(self) -> list[Deployment]:
        """The deployments that changed since the last time, and now and then all of them."""
        if time.monotonic() - self._all_read_at > _ALL_EVERY_SECONDS:
            return await self.all()
        open_ids = {d.id for d in self.deployments.values() if not _is_completed(d)}
        listed: list[Deployment] = []
        async for page in self._pages():
            is_known = all(
                each.id in self.deployments and _is_completed(self.deployments[each.id])
                for each in page
            )
            listed += self._store(page)
            if is_known:
                break
        async with self.installed.api() as api:
            for id_ in open_ids - {each.id for each in listed}:
                request = pb.GetDeploymentRequest(deployment_id=id_)
                answer = await api.GetDeployment(request, timeout=_CALL_SECONDS)
                listed += self._store([answer.deployment])
        return listed

    async def all(self) -> list[Deployment]:
        """All deployments; those that the control plane has lost are not known any more."""
        listed = [each async for page in self._pages() for each in page]
        self.deployments.clear()
        self._all_read_at = time.monotonic()
        return self._store(listed)

    async def _pages(self) -> AsyncIterator[list[Deployment]]:
        async with self.installed.api() as api:
            request = pb.ListDeploymentsRequest(limit=_PAGE)
            while True:
                answer = await api.ListDeployments(request, timeout=_CALL_SECONDS)
                yield list(answer.deployments)
                if not answer.cursor or len(answer.deployments) < _PAGE:
                    return
                request.cursor = answer.cursor

    def _store(self, listed: Iterable[Deployment]) -> list[Deployment]:
        read = list(listed)
        self.deployments.update({each.id: each for each in read})
        return read

    async def logs(self, deployment: str, replica: int = 0) -> StageLogs:
        async with self.installed.api(replica) as api:
            request = pb.ListStageLogsRequest(deployment_id=deployment)
            answer = await api.ListStageLogs(request, timeout=_CALL_SECONDS)
        return {
            (deployment, stage): [line for block in log.blocks for line in block.log.splitlines()]
            for stage, log in answer.stage_logs.items()
        }

    async def chains(self) -> list[DeploymentChain]:
        """All deployment chains."""
        chains: list[DeploymentChain] = []
        request = web_pb2.ListDeploymentChainsRequest(page_size=_PAGE)
        async with self.installed.web() as web:
            while True:
                answer = await web.ListDeploymentChains(
                    request, metadata=self.installed.cookie(), timeout=_CALL_SECONDS
                )
                chains += answer.deployment_chains
                if not answer.cursor or len(answer.deployment_chains) < _PAGE:
                    return chains
                request.cursor = answer.cursor

    async def applications(self) -> dict[str, Application]:
        async with self.installed.api() as api:
            answer = await api.ListApplications(pb.ListApplicationsRequest(), timeout=_CALL_SECONDS)
        return {application.name: application for application in answer.applications}

    async def command(self, id_: str) -> Command:
        if id_ in self.commands:
            return self.commands[id_]
        async with self.installed.api() as api:
            request = pb.GetCommandRequest(command_id=id_)
            command = (await api.GetCommand(request, timeout=_CALL_SECONDS)).command
        if CommandStatus(command.status) is not CommandStatus.NOT_HANDLED_YET:
            self.commands[id_] = command
        return command

    async def preview(self, command: str) -> PlanPreviewCommandResult:
        """The result of a plan preview that is handled."""
        if command not in self.previews:
            async with self.installed.api() as api:
                request = pb.GetPlanPreviewResultsRequest(commands=[command])
                answer = await api.GetPlanPreviewResults(request, timeout=_CALL_SECONDS)
            (self.previews[command],) = answer.results
        return self.previews[command]

    async def events(self) -> dict[str, Event]:
        events: dict[str, Event] = {}
        request = web_pb2.ListEventsRequest(page_size=_EVENTS_PAGE)
        async with self.installed.web() as web:
            while True:
                answer = await web.ListEvents(
                    request, metadata=self.installed.cookie(), timeout=_CALL_SECONDS
                )
                events |= {event.id: event for event in answer.events}
                if not answer.cursor or len(answer.events) < _EVENTS_PAGE:
                    return events
                request.cursor = answer.cursor


def _is_completed(deployment: Deployment) -> bool:
    return DeploymentStatus(deployment.status).is_completed
