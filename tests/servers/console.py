# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the console: the reports of a piped, and types of fixtures."""

from typing import Protocol

import httpx2

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.model.clock import Now, to_unix
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service.piped_pb2 import (
    ReportDeploymentCompletedRequest,
    ReportDeploymentStatusChangedRequest,
    ReportStageStatusChangedRequest,
)


class OpenBrowser(Protocol):
    """Opens an HTTP client with the session of a user, or without a session."""

    def __call__(self, user: User | None = None) -> httpx2.AsyncClient: ...


class SubmitForm(Protocol):
    """Submits a form with the CSRF token of its page."""

    async def __call__(
        self, client: httpx2.AsyncClient, page: str, action: str, **fields: str
    ) -> httpx2.Response: ...


class SubmitPageForm(Protocol):
    """Submits a form of the page that a test module is about."""

    async def __call__(self, form: str, /, **fields: str) -> httpx2.Response: ...


class PipedReports:
    """Sends the reports of the piped of these tests."""

    def __init__(self, cases: UseCases, piped: PipedCaller, now: Now) -> None:
        self._cases, self._piped, self._now = cases, piped, now
        self._index = 0

    async def online(self) -> None:
        await self._cases.pipeds.report_stat(b"up 1", by=self._piped)

    async def deployment(self, deployment: Deployment, status: DeploymentStatus) -> None:
        if status.is_completed:
            completed = ReportDeploymentCompletedRequest(
                deployment_id=deployment.id,
                status=pb.DeploymentStatus.ValueType(status),
                completed_at=to_unix(self._now()),
            )
            await self._cases.deployment_reports.report_completed(completed, by=self._piped)
            return
        report = ReportDeploymentStatusChangedRequest(
            deployment_id=deployment.id, status=pb.DeploymentStatus.ValueType(status)
        )
        await self._cases.deployment_reports.report_status(report, by=self._piped)

    async def stage(
        self, deployment: Deployment, stage: str, status: StageStatus, reason: str = ""
    ) -> None:
        report = ReportStageStatusChangedRequest(
            deployment_id=deployment.id,
            stage_id=stage,
            status=pb.StageStatus.ValueType(status),
            status_reason=reason,
            completed_at=to_unix(self._now()) if status.is_completed else 0,
        )
        await self._cases.deployment_reports.report_stage_status(report, by=self._piped)

    async def lines(self, deployment: Deployment, stage: str, *lines: str) -> None:
        blocks: list[LogBlock] = []
        for line in lines:
            self._index += 1
            at = to_unix(self._now())
            blocks.append(LogBlock(index=self._index, log=line, created_at=at))
        await self._cases.logs.append(StageRun(deployment.id, stage), blocks, by=self._piped)

    async def end_of_log(self, deployment: Deployment, stage: str) -> None:
        run = StageRun(deployment.id, stage)
        await self._cases.logs.checkpoint(run, [], completed=True, by=self._piped)
