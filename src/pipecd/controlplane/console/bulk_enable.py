# SPDX-License-Identifier: Apache-2.0
"""Enables or disables several applications at once, and says what became of each."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.bulk_result import BulkResult
from pipecd.controlplane.console.flash import Flash
from pipecd.controlplane.console.list_filters import PAGE_SIZES
from pipecd.controlplane.console.page_context import BrowserSession, PageContext, referring_page
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake

_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)

Change = Callable[[str, User], Awaitable[None]]


class BulkEnablePages:
    """Routes and handlers of the two forms; both may be sent twice."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        action = self._context.action
        return [
            Route("/applications/enable", action(self.enable), methods=["POST"]),
            Route("/applications/disable", action(self.disable), methods=["POST"]),
        ]

    async def enable(self, request: Request, session: BrowserSession) -> Response:
        applications = self._context.cases.applications
        return await self._change(
            request, session, "enabled", lambda id, user: applications.enable(id, by=user)
        )

    async def disable(self, request: Request, session: BrowserSession) -> Response:
        applications = self._context.cases.applications
        return await self._change(
            request, session, "disabled", lambda id, user: applications.disable(id, by=user)
        )

    async def _change(
        self, request: Request, session: BrowserSession, done: str, change: Change
    ) -> Response:
        user = session.user
        await self._context.cases.access.scope(user, _UPDATE)
        ids = tuple(dict.fromkeys(map(str, (await request.form()).getlist("id"))))[: PAGE_SIZES[-1]]
        if not ids:
            back = referring_page(request) or "/applications"
            text = f"Select the applications to be {done} in the list."
            return self._context.redirect(session, back, Flash(text, is_refusal=True))
        results = [await self._change_one(id, user, change) for id in ids]
        return self._context.render(request, "bulk_enable.html", results=results, done=done)

    async def _change_one(self, id: str, user: User, change: Change) -> BulkResult:
        name = ""
        try:
            application = await self._context.cases.applications.get(id, by=user)
            name = application.name
            if application.deleted:
                return BulkResult("", name, "It is deleted.")
            await change(id, user)
        except Denied:
            return BulkResult("", name, "Your roles do not allow it.")
        except (Conflict, NotFound, UserMistake) as e:
            return BulkResult("", name, str(e))
        return BulkResult(id, name)
