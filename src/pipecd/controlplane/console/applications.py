# SPDX-License-Identifier: Apache-2.0
"""The pages of applications: the list, the page of one, and the sync form."""

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.add_application_view import added_notice
from pipecd.controlplane.console.applications_view import application_list, application_view
from pipecd.controlplane.console.command_notice import command_notice
from pipecd.controlplane.console.deploy_targets import KIND_NAMES
from pipecd.controlplane.console.deployments_view import deployment_row
from pipecd.controlplane.console.list_filters import PAGE_SIZES, PageUrl, parse_application_query
from pipecd.controlplane.console.live_state_view import LiveStateView, live_state_view
from pipecd.controlplane.console.live_updates import MAX_TOPICS
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.status_badge import piped_status
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.errors import Denied, NotFound, UserMistake
from pipecd.proto.model.deployment_pb2 import Deployment

_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)
_RECENT = PageRequest(size=10)
_STRATEGIES = {"": SyncStrategy.AUTO, **{s.name.lower(): s for s in SyncStrategy}}


class ApplicationPages:
    """Routes and handlers of the pages of applications."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page, action = self._context.page, self._context.action
        return [
            Route("/applications", page(self.list_page), methods=["GET"]),
            Route("/applications/{id}", page(self.show_page), methods=["GET"]),
            Route("/applications/{id}/sync", action(self.sync), methods=["POST"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        user, cases = session.user, self._context.cases
        query = parse_application_query(request.query_params)
        found = await cases.applications.list(query.filter(user.project), by=user)
        pipeds = await self._context.visible_pipeds(user) or ()
        url = PageUrl(request.url.path, request.query_params, reset=("page",))
        return self._context.render(
            request,
            "applications.html",
            listing=application_list(found.items, query, self._context.now()),
            query=query,
            chips=url.chips({piped.id: piped.name for piped in pipeds}),
            url=url,
            pipeds=pipeds,
            kinds=[(int(kind), name) for kind, name in KIND_NAMES.items()],
            sizes=PAGE_SIZES,
        )

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, now = session.user, self._context.now()
        application = await self._context.cases.applications.get(request.path_params["id"], by=user)
        if application.deleted:
            raise NotFound("Application is not found")
        pipeds = await self._context.visible_pipeds(user)
        piped = piped_status(application.piped_id, pipeds)
        recent = await self._recent_deployments(application.id, user)
        view = application_view(application, piped, now)
        live_state: LiveStateView | None = None
        with suppress(NotFound):
            snapshot = await self._context.cases.livestate.get(application.id, by=user)
            live_state = live_state_view(snapshot, now)
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
