# SPDX-License-Identifier: Apache-2.0
"""The pages of deployment chains: the list, and the page of one."""

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.console.chains_view import chain_page
from pipecd.controlplane.console.deployments_view import DeploymentRow, deployment_row
from pipecd.controlplane.console.filled_page import PAGE_SIZE
from pipecd.controlplane.console.list_filters import PageUrl
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.errors import Denied

LIST_PATH = "/chains"


class ChainPages:
    """Routes and handlers of the pages of deployment chains."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        page = self._context.page
        return [
            Route(LIST_PATH, page(self.list_page), methods=["GET"]),
            Route(f"{LIST_PATH}/{{id}}", page(self.show_page), methods=["GET"]),
        ]

    async def list_page(self, request: Request, session: BrowserSession) -> Response:
        before = request.query_params.get("before", "")
        listed = await self._context.cases.chains.list(
            PageRequest(PAGE_SIZE, before), by=session.user
        )
        now = self._context.local_now(request)
        url = PageUrl(LIST_PATH, request.query_params)
        return self._context.render(
            request,
            "chains.html",
            chains=[chain_page(chain, now) for chain in listed.items],
            is_first=not before,
            older=url.with_params(before=listed.cursor) if listed.cursor else "",
        )

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        chain = await self._context.cases.chains.get(request.path_params["id"], by=session.user)
        now = self._context.local_now(request)
        view = chain_page(chain, now)
        rows: dict[str, DeploymentRow] = {}
        with suppress(Denied):
            found = await self._context.cases.deployments.get_many(
                view.deployments, by=session.user
            )
            rows = {id: deployment_row(each, now) for id, each in found.items()}
        first = next((rows[id] for id in view.deployments if id in rows), None)
        return self._context.render(request, "chain.html", view=view, rows=rows, first=first)
