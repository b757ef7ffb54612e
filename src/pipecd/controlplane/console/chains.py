# SPDX-License-Identifier: Apache-2.0
"""The pages of deployment chains: the list, and the page of one."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.chains_view import (
    CHAIN_STATUSES,
    LIST_PATH,
    chain_page,
    parse_chain_query,
)
from pipecd.controlplane.console.deployments_view import DeploymentRow, deployment_row
from pipecd.controlplane.console.filled_page import filled_page
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.errors import Denied
from pipecd.proto.model.chain_pb2 import DeploymentChain


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
        user, query = session.user, parse_chain_query(request.query_params)

        async def read(part: PageRequest) -> tuple[Sequence[DeploymentChain], str]:
            listed = await self._context.cases.chains.list(part, by=user)
            return listed.items, listed.cursor

        found, cursor = await filled_page(read, query.matches, query.before)
        now, url = self._context.local_now(request), query.url()
        chains = [chain_page(chain, now) for chain in found]
        firsts = [chain.deployments[0] for chain in chains if chain.deployments]
        return self._context.render(
            request,
            "chains.html",
            chains=chains,
            rows=await self._rows(firsts, now, user),
            query=query,
            statuses=[(status, badge.text) for status, badge in CHAIN_STATUSES.items()],
            chips=url.chips(query.active_filters()),
            is_first=not query.before,
            older=url.with_params(before=cursor) if cursor else "",
        )

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        chain = await self._context.cases.chains.get(request.path_params["id"], by=session.user)
        now = self._context.local_now(request)
        view = chain_page(chain, now)
        rows = await self._rows(view.deployments, now, session.user)
        first = next((rows[id] for id in view.deployments if id in rows), None)
        return self._context.render(request, "chain.html", view=view, rows=rows, first=first)

    async def _rows(
        self, ids: Sequence[str], now: datetime, user: User
    ) -> Mapping[str, DeploymentRow]:
        """The deployments by their ids, as far as the user may see them."""
        with suppress(Denied):
            found = await self._context.cases.deployments.get_many(ids, by=user)
            return {id: deployment_row(each, now) for id, each in found.items()}
        return {}
