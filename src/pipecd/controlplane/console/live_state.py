# SPDX-License-Identifier: Apache-2.0
"""The page of the live state of an application."""

from contextlib import suppress
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.console.diff_view import (
    MAX_LINES,
    DiffView,
    drift_view,
    in_thread_if_long,
)
from pipecd.controlplane.console.list_filters import PageUrl
from pipecd.controlplane.console.live_graph import live_graph, narrow_graph
from pipecd.controlplane.console.live_state_view import (
    LiveStateView,
    live_state_view,
    parse_live_query,
)
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.status_badge import piped_status, sync_status
from pipecd.model.application import SyncStatus
from pipecd.model.errors import NotFound
from pipecd.proto.model.application_pb2 import Application


class LiveStatePages:
    """Routes and handlers of the live state."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page = self._context.page
        return [Route("/applications/{id}/live", page(self.show_page), methods=["GET"])]

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, cases = session.user, self._context.cases
        application = await cases.applications.get(request.path_params["id"], by=user)
        if application.deleted:
            raise NotFound("Application is not found")
        query = parse_live_query(request.query_params)
        events = await cases.livestate.events(application.id, by=user) if query.resource else ()
        view: LiveStateView | None = None
        with suppress(NotFound):
            snapshot = await cases.livestate.get(application.id, by=user)
            now = self._context.local_now(request)
            drift = await application_drift(application)
            view = live_state_view(snapshot, now, query, drift=drift, events=events)
        return self._context.render(
            request,
            "live_state.html",
            id=application.id,
            name=application.name,
            view=view,
            graphs=(live_graph(view.roots), narrow_graph(view.roots))
            if view and query.is_graph
            else (),
            query=query,
            url=PageUrl(request.url.path, request.query_params),
            piped=piped_status(application.piped_id, await self._context.visible_pipeds(user)),
            out_of_sync=sync_status(application) is SyncStatus.OUT_OF_SYNC,
        )


async def application_drift(application: Application, *, max_lines: int = MAX_LINES) -> DiffView:
    """The differences of an application with Git; none unless it is out of sync."""
    if sync_status(application) is not SyncStatus.OUT_OF_SYNC:
        return DiffView()
    view = partial(drift_view, max_lines=max_lines)
    return await in_thread_if_long(view, application.sync_state.reason)
