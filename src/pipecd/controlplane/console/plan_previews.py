# SPDX-License-Identifier: Apache-2.0
"""The pages of plan previews: the recent ones, and what one of them would deploy."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.console.list_filters import PageUrl
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.console.plan_previews_view import preview_entries, preview_view

LIST_PATH = "/plan-previews"


class PlanPreviewPages:
    """Routes and handlers of the pages of plan previews."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page = self._context.page
        return [
            Route(LIST_PATH, page(self.list_page), methods=["GET"]),
            Route(f"{LIST_PATH}/{{id}}", page(self.show_page), methods=["GET"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        cases, id = self._context.cases, request.query_params.get("applicationId", "")
        application = await cases.applications.get(id, by=session.user) if id else None
        commands = await cases.plan_previews.list_recent(id, by=session.user)
        pipeds = await self._context.visible_pipeds(session.user)
        now = self._context.local_now(request)
        return self._context.render(
            request,
            "plan_previews.html",
            entries=preview_entries(commands, pipeds, now),
            application=application,
        )

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        user, params, id = session.user, request.query_params, request.path_params["id"]
        preview = await self._context.cases.plan_previews.get(id, by=user)
        pipeds = await self._context.visible_pipeds(user)
        now = self._context.local_now(request)
        return self._context.render(
            request,
            "plan_preview.html",
            view=await preview_view(preview, pipeds, now, only=params.get("app", "")),
            is_split=params.get("diff", "") == "split",
            url=PageUrl(f"{LIST_PATH}/{id}", params),
        )
