# SPDX-License-Identifier: Apache-2.0
"""The pages of deployments: the list, the page of one with its logs, and its commands."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from urllib.parse import quote

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.application_summary import list_summaries
from pipecd.controlplane.console.command_notice import (
    Notice,
    command_notice,
    is_approval_done,
    refusal_text,
)
from pipecd.controlplane.console.deploy_targets import platform_choices
from pipecd.controlplane.console.deployment_changes import ChangesView, deployment_changes
from pipecd.controlplane.console.deployment_timeline import TimelineStep, deployment_timeline
from pipecd.controlplane.console.deployments_view import (
    STATUS_FILTERS,
    ChainView,
    DeploymentView,
    chain_view,
    deployment_view,
    group_by_day,
    matches,
    selected_stage,
    stuck_deployments,
    unfinished_counts,
)
from pipecd.controlplane.console.first_error import markdown
from pipecd.controlplane.console.flash import Flash
from pipecd.controlplane.console.list_filters import (
    PERIODS,
    DeploymentQuery,
    FilterChoices,
    PageUrl,
    canonical_params,
    parse_deployment_query,
)
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    PageContext,
    browser_time_zone,
)
from pipecd.controlplane.console.pipeline_view import StageView
from pipecd.controlplane.console.resource_changes import (
    ResourceChanges,
    deployment_resource_changes,
    missing_changes,
)
from pipecd.controlplane.console.roll_back_view import later_success, sync_again_text
from pipecd.controlplane.console.stage_log import LogView, parse_log_query
from pipecd.controlplane.console.stage_log_pages import StageLogPages, log_key
from pipecd.controlplane.console.status_badge import offline_pipeds, piped_status
from pipecd.controlplane.console.usual_durations import COMPARED_DEPLOYMENTS
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import NOT_COMPLETED, DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.usecases.deployments import MAX_REJECTION_LENGTH
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

_UPDATE = Permission(Resource.DEPLOYMENT, Action.UPDATE)
_SYNC = Permission(Resource.APPLICATION, Action.UPDATE)
_PAGE_SIZE = 50
# A platform of more applications is found on every page of the list.
_MAX_APPLICATIONS = 4096
_NO_APPLICATION = ("-",)
# What the page shows below the pipeline instead of a log.
_TABS = ("changes", "timeline")
# What the forms of the page send along, so that it looks the same after a command.
_STATE_PARAMS = ("stage", "tab", "find", "only", "wrap", "times", "diff")
# Cancel modes of the form: (with rollback, without rollback).
_CANCEL_MODES = {"": (False, False), "rollback": (True, False), "keep": (False, True)}


class DeploymentPages:
    """Routes and handlers of the pages of deployments."""

    def __init__(self, context: PageContext) -> None:
        self._context, self._logs = context, StageLogPages(context)

    def routes(self) -> list[Route]:
        deployment, stage = "/deployments/{id}", "/deployments/{id}/stages/{stage}"
        page, action = self._context.page, self._context.action
        return [
            Route("/deployments", page(self.list_page), methods=["GET"]),
            Route(deployment, page(self.show_page), methods=["GET"]),
            Route(f"{stage}/log.txt", page(self._logs.raw_log), methods=["GET"]),
            Route(f"{deployment}/cancel", action(self.cancel), methods=["POST"]),
            Route(f"{stage}/approve", action(self.approve), methods=["POST"]),
            Route(f"{stage}/reject", action(self.reject), methods=["POST"]),
            Route(f"{stage}/skip", action(self.skip), methods=["POST"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        user = session.user
        query = parse_deployment_query(canonical_params(request.query_params, status="status"))
        found: list[Deployment] = []
        cursor = query.before
        since = to_unix(self._context.now()) - PERIODS[query.since] if query.since else 0
        filter = await self._filter(query, user)
        while True:
            part = await self._context.cases.deployments.list(
                filter, PageRequest(_PAGE_SIZE, cursor, since), by=user
            )
            found += (d for d in part.items if matches(d, query))
            cursor = part.cursor
            if not cursor or len(found) >= _PAGE_SIZE:
                break
        in_progress = DeploymentFilter(user.project, statuses=NOT_COMPLETED)
        unfinished = await self._context.cases.deployments.list(in_progress, by=user)
        pipeds = await self._context.visible_pipeds(user) or ()
        names = {piped.id: piped.name for piped in pipeds}
        names |= {d.application_id: d.application_name for d in found}
        filters, url = query.active_filters(names), query.url()
        offline = offline_pipeds(pipeds)
        return self._context.render(
            request,
            "deployments.html",
            days=group_by_day(found, self._context.local_now(request)),
            query=query,
            chips=url.chips(filters),
            texts={each.param: each.text for each in filters},
            url=url,
            older=url.with_params(before=cursor) if cursor else "",
            choices=FilterChoices(
                statuses=tuple((value, badge.text) for value, badge in STATUS_FILTERS),
                pipeds=tuple((piped.id, piped.name) for piped in pipeds),
                platforms=platform_choices(pipeds),
            ),
            offline=offline,
            stuck=stuck_deployments(found, offline),
            counts=unfinished_counts(unfinished.items),
        )

    async def _filter(self, query: DeploymentQuery, user: User) -> DeploymentFilter:
        """What the datastore filters; of a platform that few applications have, these."""
        filter = query.filter(user.project)
        if not query.platforms or filter.application_ids:
            return filter
        try:
            everything = ApplicationFilter(user.project)
            found = await list_summaries(self._context.cases.applications, everything, by=user)
        except Denied:
            return filter
        wanted = set(query.platforms)
        ids = tuple(each.id for each in found if not wanted.isdisjoint(each.platforms))
        if len(ids) > _MAX_APPLICATIONS:
            return filter
        return replace(filter, application_ids=ids or _NO_APPLICATION)

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, params = session.user, request.query_params
        deployment = await self._context.cases.deployments.get(request.path_params["id"], by=user)
        pipeds = await self._context.visible_pipeds(user)
        piped = piped_status(deployment.piped_id, pipeds)
        now = self._context.local_now(request)
        application = None
        if DeploymentStatus(deployment.status).is_completed:
            application = await self._application(deployment, user)
        later_commit = later_success(deployment, application)
        view = deployment_view(deployment, piped, user.name, now, later_commit)
        stage = selected_stage(view, params.get("stage", ""))
        query = parse_log_query(params)
        tab = params.get("tab", "") if params.get("tab", "") in _TABS else ""
        # Without a stage there is no log to show.
        tab = tab or ("" if stage else "timeline")
        log: LogView | None = None
        if stage and not tab:
            log = await self._logs.view(request, deployment, stage, query, user)
        resources = await self._resources(deployment, now, user) if tab == "changes" else None
        command = await self._context.requested_command(
            request, user, lambda command: command.deployment_id == deployment.id
        )
        # Of an ended deployment it matters how it ended, not that it was approved before.
        if command and view.completed and is_approval_done(command):
            command = None
        notice = command and command_notice(command, piped_status(command.piped_id, pipeds))
        return self._context.render(
            request,
            "deployment.html",
            view=view,
            stage=stage,
            current_stage=None if view.completed else selected_stage(view, ""),
            tab=tab,
            log=log,
            log_query=query,
            log_key=log_key(stage, query, browser_time_zone(request)) if stage else "",
            error_markdown=self._error_markdown(request, view, stage, log),
            changes=await self._changes(deployment, user),
            resources=resources,
            is_split=params.get("diff", "") == "split",
            timeline=await self._timeline(deployment, now, user) if tab == "timeline" else (),
            chain=await self._chain(deployment, user),
            trace=deployment.deployment_trace_commit_hash,
            sync_again=await self._sync_again(deployment, application, user),
            can_reject=bool(view.approvals)
            and await self._context.cases.deployments.can_reject(deployment),
            max_reason=MAX_REJECTION_LENGTH,
            wraps=params.get("wrap", "1") != "0",
            shows_times=params.get("times", "1") != "0",
            notice=notice,
            disabled_reason=await self._context.denied_reason(user, _UPDATE, deployment),
            url=PageUrl(f"/deployments/{deployment.id}", params, reset=("from", "at", "match")),
            topics=_topics(view, stage, log, notice, resources, application),
        )

    def _error_markdown(
        self, request: Request, view: DeploymentView, stage: StageView | None, log: LogView | None
    ) -> str:
        """The first error of the log to copy, with a link to it; empty without one."""
        if not stage or not log or not log.first_error:
            return ""
        number, path = log.first_error.number, f"/deployments/{view.row.id}"
        address = PageUrl(path, QueryParams()).with_params(stage=stage.id, at=number)
        link = f"{self._context.public_url(request)}{address}#L{number}"
        title = f"{view.row.application_name}: {stage.name} failed"
        return markdown(title, stage.reason, link, log.first_error)

    async def _changes(self, deployment: Deployment, user: User) -> ChangesView:
        try:
            deployments = self._context.cases.deployments
            previous = await deployments.previous_success(deployment, by=user)
        except Denied:
            return deployment_changes(deployment, None, is_denied=True)
        return deployment_changes(deployment, previous)

    async def _resources(
        self, deployment: Deployment, now: datetime, user: User
    ) -> ResourceChanges:
        deployments = self._context.cases.deployments
        reported = await deployments.changes(deployment.id, by=user)
        if reported is not None:
            return await deployment_resource_changes(reported, now)
        has_own_piped = await deployments.has_own_piped(deployment)
        return missing_changes(deployment, has_own_piped=has_own_piped, now=now)

    async def _timeline(
        self, deployment: Deployment, now: datetime, user: User
    ) -> tuple[TimelineStep, ...]:
        deployments, earlier = self._context.cases.deployments, tuple[Deployment, ...]()
        commands = await deployments.commands_of(deployment.id, by=user)
        with suppress(Denied):
            earlier = await deployments.earlier_successes(deployment, COMPARED_DEPLOYMENTS, by=user)
        return deployment_timeline(deployment, commands, now, earlier)

    async def _chain(self, deployment: Deployment, user: User) -> ChainView | None:
        if not (chain_id := deployment.deployment_chain_id):
            return None
        with suppress(Denied, NotFound):
            document = await self._context.cases.chains.get(chain_id, by=user)
            return chain_view(document, deployment.deployment_chain_block_index)
        return None

    async def _application(self, deployment: Deployment, user: User) -> Application | None:
        """The application of the deployment, None if it is gone or hidden from the user."""
        with suppress(Denied, NotFound):
            return await self._context.cases.applications.get(deployment.application_id, by=user)
        return None

    async def _sync_again(
        self, deployment: Deployment, application: Application | None, user: User
    ) -> str:
        """What a sync deploys; empty if the user cannot request one."""
        if application is None or application.deleted or application.disabled:
            return ""
        if await self._context.denied_reason(user, _SYNC, application):
            return ""
        return sync_again_text(deployment, application)

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
            "cancellation",
            lambda: cancel(deployment_id, with_rollback, without_rollback, by=session.user),
            mode,
        )

    async def approve(self, request: Request, session: BrowserSession) -> Response:
        approve, ids = self._context.cases.deployments.approve, request.path_params
        return await self._send_command(
            request, session, "approval", lambda: approve(ids["id"], ids["stage"], by=session.user)
        )

    async def reject(self, request: Request, session: BrowserSession) -> Response:
        reject, ids = self._context.cases.deployments.reject, request.path_params
        reason = str((await request.form()).get("reason", ""))
        return await self._send_command(
            request,
            session,
            "rejection",
            lambda: reject(ids["id"], ids["stage"], reason, by=session.user),
        )

    async def skip(self, request: Request, session: BrowserSession) -> Response:
        skip, ids = self._context.cases.deployments.skip, request.path_params
        return await self._send_command(
            request, session, "skip", lambda: skip(ids["id"], ids["stage"], by=session.user)
        )

    async def _send_command(
        self,
        request: Request,
        session: BrowserSession,
        noun: str,
        send: Callable[[], Awaitable[str]],
        mode: str = "",
    ) -> Response:
        """Sends a command to the piped and returns to the page as it was, which shows its state.

        A command that is refused at once shows its reason there, too.
        """
        deployment_id, form = request.path_params["id"], await request.form()
        state = QueryParams([(name, str(form.get(name, ""))) for name in _STATE_PARAMS])
        url = PageUrl(f"/deployments/{deployment_id}", state)
        key = (session.token, request.url.path, mode)
        try:
            command_id = await self._context.deduplicator.run(key, send)
        except (Conflict, UserMistake) as e:
            deployment = await self._context.cases.deployments.get(deployment_id, by=session.user)
            stage_id = request.path_params.get("stage", "")
            flash = Flash(refusal_text(noun, e, deployment, stage_id), is_refusal=True)
            return self._context.redirect(session, url.with_params(), flash)
        return self._context.redirect(session, url.with_params(cmd=command_id))


def _topics(
    view: DeploymentView,
    stage: StageView | None,
    log: LogView | None,
    notice: Notice | None,
    resources: ResourceChanges | None,
    application: Application | None,
) -> str:
    """What the page follows; of an ended deployment what is not complete yet, and later ones."""
    deployment_id = view.row.id
    topics = [] if view.completed else [f"dep:{deployment_id}", "pipeds"]
    if application is not None:
        # A later success changes how this deployment is rolled back, and what a sync deploys.
        topics.append(f"app:{application.id}")
    if view.completed and resources and resources.is_expected:
        topics.append(f"dep:{deployment_id}")
    follows = log and log.is_at_end and not log.completed
    if stage and follows and (stage.started or not view.completed):
        topics.append(f"log:{deployment_id}:{quote(stage.id, safe='')}:{stage.retried_count}")
    if notice and notice.is_pending:
        topics.append(f"cmd:{notice.command_id}")
    return ",".join(topics)
