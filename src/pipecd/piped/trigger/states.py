# SPDX-License-Identifier: Apache-2.0
"""Tells people that the configuration of an application is wrong, and when it is right again."""

import structlog

from pipecd.model.application import SyncStatus
from pipecd.model.errors import PipecdError
from pipecd.model.moment import Now, to_unix, utc_now
from pipecd.piped.api import PipedApi
from pipecd.proto.model import application_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.service.piped_pb2 import ReportApplicationSyncStateRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class ConfigStates:
    """Reports each change of an application's state between invalid and not, once."""

    def __init__(self, api: PipedApi, *, now: Now = utc_now) -> None:
        self._api, self._now = api, now
        # The reason that was reported last; empty after the state was cleared.
        self._reported: dict[str, str] = {}

    def is_invalid(self, application: Application) -> bool:
        """Whether people are being told that the configuration is wrong."""
        if application.id in self._reported:
            return bool(self._reported[application.id])
        return application.sync_state.status == SyncStatus.INVALID_CONFIG

    async def invalid(self, application: Application, reason: str) -> None:
        """The configuration is wrong."""
        state = application.sync_state
        before = self._reported.get(application.id)
        if before is None and state.status == SyncStatus.INVALID_CONFIG:
            before = state.reason
        if before == reason:
            return
        log.warning("configuration is invalid", application=application.id, error=reason)
        await self._report(application, SyncStatus.INVALID_CONFIG, reason)

    async def valid(self, application: Application) -> None:
        """The configuration is right."""
        if self.is_invalid(application):
            log.info("configuration is valid again", application=application.id)
            await self._report(application, SyncStatus.UNKNOWN, "")

    async def _report(self, application: Application, status: SyncStatus, reason: str) -> None:
        short = reason.strip().split("\n", 1)[0][:200]
        request = ReportApplicationSyncStateRequest(
            application_id=application.id,
            state=ApplicationSyncState(
                status=application_pb2.ApplicationSyncStatus.ValueType(status),
                short_reason=short,
                reason=reason,
                timestamp=to_unix(self._now()),
            ),
        )
        try:
            await self._api.report_application_sync_state(request)
        except PipecdError as e:
            log.warning("state not reported", application=application.id, error=str(e))
            return
        self._reported[application.id] = reason
