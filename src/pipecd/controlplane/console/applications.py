# SPDX-License-Identifier: Apache-2.0
"""The pages of applications: the list, the page of one, and the sync form."""

from contextlib import suppress

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.add_application_view import added_notice
from pipecd.controlplane.console.applications_view import (
    application_list,
    application_view,
    with_outcomes,
)
from pipecd.controlplane.console.bulk_result import BulkResult, decode_results, encode_results
from pipecd.controlplane.console.command_notice import command_notice
from pipecd.controlplane.console.deploy_targets import KIND_NAMES
from pipecd.controlplane.console.deployments_view import deployment_row
from pipecd.controlplane.console.list_filters import (
    PAGE_SIZES,
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
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.pipeline_view import has_pending_approval
from pipecd.controlplane.console.status_badge import piped_status
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

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
            Route("/applications/sync", action(self.sync_several), methods=["POST"]),
            Route("/applications/{id}", page(self.show_page), methods=["GET"]),
            Route("/applications/{id}/sync", action(self.sync), methods=["POST"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        user, cases = session.user, self._context.cases
        params = canonical_params(request.query_params, status="syncStatus")
        query = parse_application_query(params)
        found = await cases.applications.list(query.filter(user.project), by=user)
        waiting: tuple[Deployment, ...] = ()
        outcomes: dict[str, Deployment] = {}
        with suppress(Denied):
            waiting = await cases.deployments.list_waiting_for_approval(by=user)
        listing = application_list(
            found.items,
            query,
            self._context.local_now(request),
            frozenset(deployment.application_id for deployment in waiting),
            await cases.livestate.health(by=user),
        )
        with suppress(Denied):
            latest = [row.triggered.id for row in listing.rows if row.triggered]
            outcomes = await cases.deployments.get_many(latest, by=user)
        pipeds = await self._context.visible_pipeds(user) or ()
        url = PageUrl(request.url.path, params, reset=("page",))
        return self._context.render(
            request,
            "applications.html",
            listing=with_outcomes(listing, outcomes),
            deleted=request.query_params.get("deleted", ""),
            query=query,
            chips=url.chips({piped.id: piped.name for piped in pipeds}),
            url=url,
            pipeds=pipeds,
            kinds=[(int(kind), name) for kind, name in KIND_NAMES.items()],
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
        view = application_view(application, piped, now, waiting_id=waiting_id)
        drift = await application_drift(application)
        live_state: LiveStateView | None = None
        with suppress(NotFound):
            snapshot = await self._context.cases.livestate.get(application.id, by=user)
            live_state = live_state_view(snapshot, now, drift=drift)
            live_state = worst_first(live_state, _SHOWN_RESOURCES)
        command = await self._context.requested_command(request, user)
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
        """Requests a sync of each of the applications and shows which ones were refused."""
        user, cases = session.user, self._context.cases
        await cases.access.scope(user, _UPDATE)
        ids = tuple(dict.fromkeys(map(str, (await request.form()).getlist("id"))))[: PAGE_SIZES[-1]]

        async def sync_each() -> str:
            results: list[BulkResult] = []
            for id in ids:
                name = id[:8]
                try:
                    name = (await cases.applications.get(id, by=user)).name
                    command_id = await cases.applications.sync(id, by=user)
                except (Conflict, Denied, NotFound, UserMistake) as e:
                    results.append(BulkResult(id, name, reason=e.message))
                else:
                    results.append(BulkResult(id, name, command_id))
            return encode_results(results)

        key = (session.token, request.url.path, *ids)
        results = decode_results(await self._context.deduplicator.run(key, sync_each))
        return self._context.render(request, "bulk_sync.html", results=results)

    async def sync(self, request: Request, session: BrowserSession) -> Response:
        application_id = request.path_params["id"]
        requested = str((await request.form()).get("strategy", ""))
        if requested not in _STRATEGIES:
            raise UserMistake(
                f"{requested!r} is not a sync strategy", hint="use auto, quick_sync or pipeline"
            )
        strategy = _STRATEGIES[requested]
        sync = self._context.cases.applications.sync
        command_id = await self._context.deduplicator.run(
            (session.token, request.url.path, strategy.name),
            lambda: sync(application_id, strategy, by=session.user),
        )
        return RedirectResponse(f"/applications/{application_id}?cmd={command_id}", 303)
