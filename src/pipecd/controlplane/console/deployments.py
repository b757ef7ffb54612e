# SPDX-License-Identifier: Apache-2.0
"""The pages of deployments: the list, the page of one with its logs, cancel, approve and skip."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.command_notice import Notice, command_notice
from pipecd.controlplane.console.deployments_view import (
    ChainView,
    DeploymentView,
    chain_view,
    deployment_view,
    group_by_day,
    matches,
    selected_stage,
)
from pipecd.controlplane.console.list_filters import PageUrl, parse_deployment_query
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    PageContext,
    browser_time_zone,
)
from pipecd.controlplane.console.pipeline_view import StageView, has_pending_approval
from pipecd.controlplane.console.stage_log import (
    TAIL_LINES,
    LogCursor,
    LogView,
    log_after,
    log_tail,
    log_text,
    parse_cursor,
)
from pipecd.controlplane.console.status_badge import deployment_badge, piped_status
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.stage_logs import StageLogPart, StageRun
from pipecd.model.count import parse_count
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied, NotFound, UserMistake
from pipecd.proto.model.deployment_pb2 import Deployment

_UPDATE = Permission(Resource.DEPLOYMENT, Action.UPDATE)
_PAGE_SIZE = 50
# How many pages of the datastore one search reads before it offers to continue.
_MAX_READS = 20
_MAX_LINES = 20_000
# Cancel modes of the form: (with rollback, without rollback).
_CANCEL_MODES = {"": (False, False), "rollback": (True, False), "keep": (False, True)}
_STATUSES = tuple((int(status), deployment_badge(status).text) for status in DeploymentStatus)


class DeploymentPages:
    """Routes and handlers of the pages of deployments."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        deployment, stage = "/deployments/{id}", "/deployments/{id}/stages/{stage}"
        page, action = self._context.page, self._context.action
        return [
            Route("/deployments", page(self.list_page), methods=["GET"]),
            Route(deployment, page(self.show_page), methods=["GET"]),
            Route(f"{stage}/log.txt", page(self.raw_log), methods=["GET"]),
            Route(f"{deployment}/cancel", action(self.cancel), methods=["POST"]),
            Route(f"{stage}/approve", action(self.approve), methods=["POST"]),
            Route(f"{stage}/skip", action(self.skip), methods=["POST"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        user = session.user
        query = parse_deployment_query(request.query_params)
        found: list[Deployment] = []
        cursor = query.before
        for _ in range(_MAX_READS):
            part = await self._context.cases.deployments.list(
                query.filter(user.project), PageRequest(_PAGE_SIZE, cursor), by=user
            )
            found += (d for d in part.items if matches(d, query))
            cursor = part.cursor
            if not cursor or len(found) >= _PAGE_SIZE:
                break
        pipeds = await self._context.visible_pipeds(user) or ()
        names = {piped.id: piped.name for piped in pipeds}
        names |= {d.application_id: d.application_name for d in found}
        url = PageUrl(request.url.path, request.query_params, reset=("before",))
        return self._context.render(
            request,
            "deployments.html",
            days=group_by_day(found, self._context.now(), browser_time_zone(request)),
            query=query,
            chips=url.chips(names),
            url=url,
            older=url.with_params(before=cursor) if cursor else "",
            pipeds=pipeds,
            statuses=_STATUSES,
            in_progress=sum(not DeploymentStatus(d.status).is_completed for d in found),
            waiting=sum(map(has_pending_approval, found)),
        )

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, params = session.user, request.query_params
        deployment = await self._context.cases.deployments.get(request.path_params["id"], by=user)
        pipeds = await self._context.visible_pipeds(user)
        piped = piped_status(deployment.piped_id, pipeds)
        view = deployment_view(deployment, piped, user.name, self._context.now())
        stage = selected_stage(view, params.get("stage", ""))
        log = await self._log(request, deployment, stage, user)
        command = await self._context.requested_command(request, user)
        notice = command and command_notice(command, piped_status(command.piped_id, pipeds))
        chain: ChainView | None = None
        if chain_id := deployment.deployment_chain_id:
            with suppress(Denied, NotFound):
                document = await self._context.cases.chains.get(chain_id, by=user)
                chain = chain_view(document, deployment.deployment_chain_block_index)
        return self._context.render(
            request,
            "deployment.html",
            view=view,
            stage=stage,
            is_selected=bool(stage and params.get("stage", "") == stage.id),
            log=log,
            chain=chain,
            wraps=params.get("wrap", "1") != "0",
            notice=notice,
            disabled_reason=await self._context.denied_reason(user, _UPDATE, deployment),
            url=PageUrl(f"/deployments/{deployment.id}", params, reset=("lines",)),
            topics=_topics(view, stage, log, notice),
        )

    async def _log(
        self, request: Request, deployment: Deployment, stage: StageView | None, user: User
    ) -> LogView | None:
        """The end of the log, or only new lines if live.js says in `HX-Log` what it has."""
        if stage is None:
            return None
        run = StageRun(deployment.id, stage.id, stage.retried_count)
        log_id, _, cursor = request.headers.get("HX-Log", "").partition(" ")
        if unquote(log_id) == f"{stage.id}:{stage.retried_count}":
            after = parse_cursor(cursor)
            part = await self._read_log(run, after, user)
            return await asyncio.to_thread(log_after, part.blocks, after, completed=part.completed)
        part = await self._read_log(run, LogCursor(), user)
        requested = parse_count(request.query_params.get("lines", "")) or 0
        size = min(max(requested, TAIL_LINES), _MAX_LINES)
        return await asyncio.to_thread(log_tail, part.blocks, completed=part.completed, size=size)

    async def _read_log(self, run: StageRun, after: LogCursor, user: User) -> StageLogPart:
        try:
            return await self._context.cases.logs.stage_log(run, after.index + 1, by=user)
        except NotFound:
            return StageLogPart((), completed=False)

    async def raw_log(self, request: Request, session: BrowserSession) -> Response:
        deployment_id, stage_id = request.path_params["id"], request.path_params["stage"]
        deployment = await self._context.cases.deployments.get(deployment_id, by=session.user)
        stage = next((stage for stage in deployment.stages if stage.id == stage_id), None)
        if stage is None:
            raise NotFound("the deployment has no such stage")
        run = StageRun(deployment_id, stage_id, stage.retried_count)
        part = await self._read_log(run, LogCursor(), session.user)
        ansi = request.query_params.get("ansi") == "1"
        text = await asyncio.to_thread(log_text, part.blocks, ansi=ansi)
        return PlainTextResponse(text)

    async def cancel(self, request: Request, session: BrowserSession) -> Response:
        mode = str((await request.form()).get("mode", ""))
        if mode not in _CANCEL_MODES:
            raise UserMistake(f"{mode!r} is not a cancel mode", hint="use rollback or keep")
        deployment_id = request.path_params["id"]
        with_rollback, without_rollback = _CANCEL_MODES[mode]
        cancel = self._context.cases.deployments.cancel
        return await self._send_command(
            request,
            session,
            lambda: cancel(deployment_id, with_rollback, without_rollback, by=session.user),
            mode,
        )

    async def approve(self, request: Request, session: BrowserSession) -> Response:
        approve, ids = self._context.cases.deployments.approve, request.path_params
        return await self._send_command(
            request, session, lambda: approve(ids["id"], ids["stage"], by=session.user)
        )

    async def skip(self, request: Request, session: BrowserSession) -> Response:
        skip, ids = self._context.cases.deployments.skip, request.path_params
        return await self._send_command(
            request, session, lambda: skip(ids["id"], ids["stage"], by=session.user)
        )

    async def _send_command(
        self,
        request: Request,
        session: BrowserSession,
        send: Callable[[], Awaitable[str]],
        mode: str = "",
    ) -> Response:
        """Sends a command to the piped and redirects to the deployment, which shows its state."""
        key = (session.token, request.url.path, mode)
        command_id = await self._context.deduplicator.run(key, send)
        stage_id = str((await request.form()).get("stage", ""))
        params = {"stage": stage_id, "cmd": command_id} if stage_id else {"cmd": command_id}
        deployment_id = request.path_params["id"]
        return RedirectResponse(f"/deployments/{deployment_id}?{urlencode(params)}", 303)


def _topics(
    view: DeploymentView, stage: StageView | None, log: LogView | None, notice: Notice | None
) -> str:
    """What the page follows; for a finished deployment only a log or command that is not."""
    deployment_id = view.row.id
    topics = [] if view.completed else [f"dep:{deployment_id}", "pipeds"]
    if stage and log and not log.completed and (stage.started or not view.completed):
        topics.append(f"log:{deployment_id}:{quote(stage.id, safe='')}:{stage.retried_count}")
    if notice and notice.is_pending:
        topics.append(f"cmd:{notice.command_id}")
    return ",".join(topics)
