# SPDX-License-Identifier: Apache-2.0
"""The pages of applications: the list, the page of one, and the sync form."""

from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.add_application_view import added_notice
from pipecd.controlplane.console.application_list import (
    application_list,
    with_choices_of,
    with_outcomes,
    with_rows,
)
from pipecd.controlplane.console.application_summary import list_summaries
from pipecd.controlplane.console.applications_view import application_view
from pipecd.controlplane.console.bulk_result import (
    BulkSyncResult,
    bulk_sync_summary,
    bulk_sync_topics,
    refusal_text,
)
from pipecd.controlplane.console.command_notice import command_notice
from pipecd.controlplane.console.deploy_targets import platform_choices
from pipecd.controlplane.console.deployments_view import deployment_row
from pipecd.controlplane.console.drift_pages import drift_url
from pipecd.controlplane.console.flash import Flash
from pipecd.controlplane.console.formatting import clause, sentence
from pipecd.controlplane.console.list_filters import (
    PAGE_SIZES,
    FilterChoices,
    PageUrl,
    canonical_params,
    parse_application_query,
)
from pipecd.controlplane.console.live_state import application_drift
from pipecd.controlplane.console.live_state_view import (
    LiveStateView,
    live_state_view,
    worst_first,
)
from pipecd.controlplane.console.live_updates import MAX_TOPICS
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    PageContext,
    referring_page,
)
from pipecd.controlplane.console.pipeline_view import has_pending_approval
from pipecd.controlplane.console.status_badge import offline_pipeds, piped_status
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.command import TRIGGERED_KEY
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

_LIST = Permission(Resource.APPLICATION, Action.LIST)
_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)
_RECENT = PageRequest(size=10)
# With more live resources, the page of an application shows only those that are not healthy.
_SHOWN_RESOURCES = 25
_STRATEGIES = {"": SyncStrategy.AUTO, **{s.name.lower(): s for s in SyncStrategy}}


class ApplicationPages:
    """Routes and handlers of the pages of applications."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page, action = self._context.page, self._context.action
        return [
            Route("/applications", page(self.list_page), methods=["GET"]),
            # Before the page of an application, which would take "sync" for an id.
            Route("/applications/sync", page(self.sync_results), methods=["GET"]),
            Route("/applications/sync", action(self.sync_several), methods=["POST"]),
            Route("/applications/{id}", page(self.show_page), methods=["GET"]),
            Route("/applications/{id}/sync", action(self.sync), methods=["POST"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        user, cases = session.user, self._context.cases
        query = parse_application_query(canonical_params(request.query_params, status="syncStatus"))
        found = await list_summaries(cases.applications, query.filter(user.project), by=user)
        approvals: tuple[Deployment, ...] = ()
        outcomes: dict[str, Deployment] = {}
        with suppress(Denied):
            approvals = await cases.deployments.list_waiting_for_approval(by=user)
        waiting = frozenset(deployment.application_id for deployment in approvals)
        health = await cases.livestate.health(by=user)
        listing = application_list(found, query, waiting, health)
        shown = await cases.applications.get_many(listing.shown, by=user)
        listing = with_rows(listing, shown, self._context.local_now(request), waiting, health)
        with suppress(Denied):
            latest = [row.triggered.id for row in listing.rows if row.triggered]
            outcomes = await cases.deployments.get_many(latest, by=user)
        visible = await self._context.visible_pipeds(user)
        pipeds = visible or ()
        filters = query.active_filters({piped.id: piped.name for piped in pipeds})
        choices = listing
        if filters and not (listing.labels and listing.healths):
            every = parse_application_query(QueryParams())
            known = await list_summaries(cases.applications, every.filter(user.project), by=user)
            choices = with_choices_of(listing, application_list(known, every, waiting, health))
        url = query.url()
        return self._context.render(
            request,
            "applications.html",
            listing=with_outcomes(listing, outcomes),
            query=query,
            chips=url.chips(filters),
            texts={each.param: each.text for each in filters},
            url=url,
            drift_url=drift_url(url, listing.counts),
            choices=FilterChoices(
                statuses=tuple((count.value, count.badge.text) for count in choices.counts),
                healths=tuple(
                    (count.value, f"{count.badge.text} ({count.count})")
                    for count in choices.healths
                ),
                labels=tuple((text.replace(": ", ":", 1), text) for text in choices.labels),
                pipeds=tuple((piped.id, piped.name) for piped in pipeds),
                platforms=platform_choices(pipeds),
            ),
            needs_piped=visible == (),
            offline=offline_pipeds(pipeds),
            sizes=PAGE_SIZES,
            may_sync=not await self._context.denied_reason(user, _UPDATE, Application()),
        )

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, now = session.user, self._context.local_now(request)
        application = await self._context.cases.applications.get(request.path_params["id"], by=user)
        if application.deleted:
            raise NotFound("Application is not found")
        pipeds = await self._context.visible_pipeds(user)
        piped = piped_status(application.piped_id, pipeds)
        recent = await self._recent_deployments(application.id, user)
        waiting_id = next((d.id for d in recent if has_pending_approval(d)), "")
        moving = (d.id for d in recent if not DeploymentStatus(d.status).is_completed)
        view = application_view(
            application, piped, now, waiting_id=waiting_id, moving_id=next(moving, "")
        )
        drift = await application_drift(application)
        live_state: LiveStateView | None = None
        with suppress(NotFound):
            snapshot = await self._context.cases.livestate.get(application.id, by=user)
            live_state = live_state_view(snapshot, now, drift=drift)
            live_state = worst_first(live_state, _SHOWN_RESOURCES)
        command = await self._context.requested_command(
            request, user, lambda command: command.application_id == application.id
        )
        notice = command and command_notice(command, piped_status(command.piped_id, pipeds))
        if "added" in request.query_params and not recent:
            notice = notice or added_notice(piped)
        topics = [f"app:{application.id}", "pipeds"]
        topics += [f"dep:{d.id}" for d in recent if not DeploymentStatus(d.status).is_completed]
        topics += [f"cmd:{notice.command_id}"] if notice and notice.is_pending else []
        return self._context.render(
            request,
            "application.html",
            view=view,
            recent=tuple(deployment_row(deployment, now) for deployment in recent),
            live_state=live_state,
            drift=drift,
            is_split=request.query_params.get("diff", "") == "split",
            url=PageUrl(request.url.path, request.query_params),
            live_url=PageUrl(f"/applications/{application.id}/live", QueryParams()),
            notice=notice,
            disabled_reason=(
                view.sync_disabled_reason
                or await self._context.denied_reason(user, _UPDATE, application)
            ),
            topics=",".join(topics[:MAX_TOPICS]),
        )

    async def _recent_deployments(self, application_id: str, user: User) -> tuple[Deployment, ...]:
        """The newest deployments; none if the user may not list them."""
        of_application = DeploymentFilter(project=user.project, application_ids=(application_id,))
        try:
            found = await self._context.cases.deployments.list(of_application, _RECENT, by=user)
        except Denied:
            return ()
        return tuple(sorted(found.items, key=lambda d: -d.created_at))

    async def sync_several(self, request: Request, session: BrowserSession) -> Response:
        """Requests a sync of each selected application, and redirects to what became of each."""
        user, cases = session.user, self._context.cases
        await cases.access.scope(user, _UPDATE)
        ids = tuple(dict.fromkeys(map(str, (await request.form()).getlist("id"))))[: PAGE_SIZES[-1]]
        if not ids:
            back = referring_page(request) or "/applications"
            flash = Flash("Select the applications to sync in the list.", is_refusal=True)
            return self._context.redirect(session, back, flash)

        async def sync_each() -> str:
            outcomes: list[tuple[str, str]] = []
            for id in ids:
                try:
                    outcomes.append(("cmd", await cases.applications.sync(id, by=user)))
                except Conflict:
                    outcomes.append(("refused", f"{id}:disabled"))
                except Denied:
                    outcomes.append(("refused", f"{id}:denied"))
                except (NotFound, UserMistake):
                    outcomes.append(("refused", id))
            return f"/applications/sync?{urlencode(outcomes)}"

        key = (session.token, request.url.path, *ids)
        return self._context.redirect(session, await self._context.deduplicator.run(key, sync_each))

    async def sync_results(self, request: Request, session: BrowserSession) -> Response:
        """What became of the syncs that `sync_several` requested."""
        user, params = session.user, request.query_params
        await self._context.cases.access.scope(user, _LIST)
        pipeds = await self._context.visible_pipeds(user)
        results: list[BulkSyncResult] = []
        for command_id in params.getlist("cmd")[: PAGE_SIZES[-1]]:
            with suppress(Denied, NotFound):
                command = await self._context.cases.commands.get(command_id, by=user)
                application = await self._context.cases.applications.get(
                    command.application_id, by=user
                )
                notice = command_notice(command, piped_status(command.piped_id, pipeds))
                results.append(BulkSyncResult(application.id, application.name, notice))
        results = await self._with_deployments(results, user)
        for refused in params.getlist("refused")[: PAGE_SIZES[-1]]:
            application_id, _, cause = refused.partition(":")
            with suppress(Denied, NotFound):
                application = await self._context.cases.applications.get(application_id, by=user)
                reason = await self._sync_refusal(application, user)
                results.append(
                    BulkSyncResult(
                        application.id,
                        application.name,
                        reason=reason or refusal_text(cause),
                        may_retry=not reason,
                    )
                )
        return self._context.render(
            request,
            "bulk_sync.html",
            results=results,
            summary=bulk_sync_summary(results),
            topics=",".join(bulk_sync_topics(results)[:MAX_TOPICS]),
        )

    async def _with_deployments(
        self, results: list[BulkSyncResult], user: User
    ) -> list[BulkSyncResult]:
        """The results with the deployments that the syncs have started."""
        started = {result.notice.deployment_id for result in results if result.notice} - {""}
        deployments: dict[str, Deployment] = {}
        with suppress(Denied):
            deployments = await self._context.cases.deployments.get_many(started, by=user)
        return [
            replace(result, deployment=deployments.get(result.notice.deployment_id))
            if result.notice
            else result
            for result in results
        ]

    async def _sync_refusal(self, application: Application, user: User) -> str:
        """Why the application cannot be synced; empty if it can be."""
        if application.deleted:
            return "It is deleted."
        if application.disabled:
            return "It is disabled; enable it first."
        return await self._context.denied_reason(user, _UPDATE, application)

    async def sync(self, request: Request, session: BrowserSession) -> Response:
        application_id = request.path_params["id"]
        requested = str((await request.form()).get("strategy", ""))
        if requested not in _STRATEGIES:
            raise UserMistake(
                f"{requested!r} is not a sync strategy", hint="use auto, quick_sync or pipeline"
            )
        strategy = _STRATEGIES[requested]
        sync, path = self._context.cases.applications.sync, f"/applications/{application_id}"
        try:
            command_id = await self._context.deduplicator.run(
                (session.token, request.url.path, strategy.name),
                lambda: sync(application_id, strategy, by=session.user),
                lambda earlier: self._is_deployed(earlier, session.user),
            )
        except Conflict as e:
            text = f"The sync was refused: {clause(e.message)} {sentence(e.hint)}".strip()
            return self._context.redirect(session, path, Flash(text, is_refusal=True))
        return self._context.redirect(session, f"{path}?cmd={command_id}")

    async def _is_deployed(self, command_id: str, user: User) -> bool:
        """Whether the deployment that a sync has started is completed."""
        try:
            command = await self._context.cases.commands.get(command_id, by=user)
            if not (deployment_id := command.metadata.get(TRIGGERED_KEY, "")):
                return False
            deployment = await self._context.cases.deployments.get(deployment_id, by=user)
        except (Denied, NotFound):
            return False
        return DeploymentStatus(deployment.status).is_completed
