# SPDX-License-Identifier: Apache-2.0
"""The log of a stage: a part of it for the page of a deployment, and the whole as a text."""

import asyncio
import re
from dataclasses import replace
from datetime import tzinfo
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pipecd.cache import LruCache
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.first_error import ErrorExcerpt, first_error
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    PageContext,
    browser_time_zone,
)
from pipecd.controlplane.console.pipeline_view import StageView
from pipecd.controlplane.console.stage_log import (
    LogCursor,
    LogQuery,
    LogView,
    lines_after,
    log_text,
    log_view,
    parse_cursor,
    parse_lines,
)
from pipecd.controlplane.datastore.log_file import StoredLog
from pipecd.controlplane.datastore.stage_logs import StageLogPart, StageRun
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import NotFound
from pipecd.proto.model.deployment_pb2 import Deployment

# The cursor that live.js sends for a part of a log that new lines do not continue.
WITHOUT_END = "-"
# Of the failed stages that are looked at, and refreshed while their rollback runs.
_MAX_FIRST_ERRORS = 200
_NOT_IN_FILENAMES = re.compile(r"[^A-Za-z0-9._-]+")


class StageLogPages:
    """Reads the logs of stages for people."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        # A completed log does not change. A tuple of one, since a log may have no error.
        self._first_errors = LruCache[StageRun, tuple[ErrorExcerpt | None]](_MAX_FIRST_ERRORS)

    async def view(
        self,
        request: Request,
        deployment: Deployment,
        stage: StageView,
        query: LogQuery,
        user: User,
    ) -> LogView:
        """What the query asks for, or only new lines if live.js says in `HX-Log` what it has."""
        zone = browser_time_zone(request)
        run = StageRun(deployment.id, stage.id, stage.retried_count)
        whole: StoredLog | None = None
        shown, _, cursor = request.headers.get("HX-Log", "").partition(" ")
        if unquote(shown) != log_key(stage, query, zone):
            whole = await self._read_whole(run, user)
            view = await asyncio.to_thread(log_view, whole, query, zone)
        elif cursor == WITHOUT_END:
            view = LogView((), 0, completed=False, cursor=LogCursor(), after=1)
        else:
            after = parse_cursor(cursor)
            part = await self._read_after(run, after, user)
            view = await asyncio.to_thread(
                lines_after, part.blocks, after, query, zone, completed=part.completed
            )
        if stage.status != StageStatus.FAILURE.name:
            return view
        return replace(view, first_error=await self._first_error(run, whole, user))

    async def _first_error(
        self, run: StageRun, whole: StoredLog | None, user: User
    ) -> ErrorExcerpt | None:
        """The first error of a log that the user may read; `whole` is the log if it is read."""
        if (cached := self._first_errors.get(run)) is not None:
            return cached[0]
        if whole is None:
            whole = await self._read_whole(run, user)
        found = await asyncio.to_thread(first_error, whole)
        if whole.completed:
            self._first_errors.put(run, (found,))
        return found

    async def raw_log(self, request: Request, session: BrowserSession) -> Response:
        """The log as a text, whole or the `lines` from one to another.

        `download=1` saves it to a file, `times=0` leaves the times out.
        """
        deployment_id, stage_id = request.path_params["id"], request.path_params["stage"]
        deployment = await self._context.cases.deployments.get(deployment_id, by=session.user)
        stage = next((stage for stage in deployment.stages if stage.id == stage_id), None)
        if stage is None:
            raise NotFound("the deployment has no such stage")
        run = StageRun(deployment_id, stage_id, stage.retried_count)
        log = await self._read_whole(run, session.user)
        params = request.query_params
        first, last = parse_lines(params.get("lines", ""))
        text = await asyncio.to_thread(
            lambda: log_text(
                map(log.block, range(first - 1, min(last, len(log)))) if first else log.blocks(),
                ansi=params.get("ansi") == "1",
                times=params.get("times") != "0",
            )
        )
        headers: dict[str, str] = {}
        if params.get("download") == "1":
            names = (deployment.application_name, stage.name, deployment.id[:8])
            filename = "-".join(_NOT_IN_FILENAMES.sub("_", name)[:60] for name in names)
            headers["Content-Disposition"] = f'attachment; filename="{filename}.log"'
        return PlainTextResponse(text, headers=headers)

    async def _read_whole(self, run: StageRun, user: User) -> StoredLog:
        try:
            return await self._context.cases.logs.whole_stage_log(run, by=user)
        except NotFound:
            return StoredLog((), (), completed=False)

    async def _read_after(self, run: StageRun, after: LogCursor, user: User) -> StageLogPart:
        try:
            return await self._context.cases.logs.stage_log(run, after.index + 1, by=user)
        except NotFound:
            return StageLogPart((), completed=False)


def log_key(stage: StageView, query: LogQuery, zone: tzinfo) -> str:
    """Identifies the lines of a page, so that live.js knows which log they continue.

    Lines with times of another zone are other lines.
    """
    run = f"{stage.id}:{stage.retried_count}:{zone}"
    return f"{run}:{query.key}" if query.key else run
