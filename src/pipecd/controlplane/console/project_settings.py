# SPDX-License-Identifier: Apache-2.0
"""The settings of a project: its pipeds, who may enter it, and how its Git hosts tell of pushes."""

from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.console import pipeds_forms as pipeds
from pipecd.controlplane.console.applications import pipeds_of
from pipecd.controlplane.console.formatting import Moment, moment
from pipecd.controlplane.console.once import Once
from pipecd.controlplane.console.page_context import Door, Visitor
from pipecd.controlplane.console.pipeds import PipedPages
from pipecd.controlplane.console.project_settings_forms import PAGE, ProjectForms
from pipecd.controlplane.console.project_settings_view import FIELDS, Problem
from pipecd.controlplane.usecases.projects import CLIENT
from pipecd.controlplane.usecases.webhooks import WebhookSettings
from pipecd.model.errors import Denied


@dataclass(frozen=True)
class WebhookView:
    """The webhook of a project, ready to be shown to an administrator."""

    url: str
    settings: WebhookSettings | None
    created: Moment | None = None
    previous_until: Moment | None = None
    arrived: Moment | None = None


class SettingsPages:
    """What people see and change of their project."""

    def __init__(self, door: Door, once: Once) -> None:
        self._door, self._once = door, once
        self._forms = ProjectForms(door, self._again)
        self._pipeds = PipedPages(door, once)

    def routes(self) -> list[Route]:
        return [
            Route("/settings", self._door.page(self._first), methods=["GET"]),
            Route(PAGE, self._door.page(self._project), methods=["GET"]),
            Route(f"{PAGE}/webhook", self._door.action(self._rotate), methods=["POST"]),
            Route(f"{PAGE}/webhook/remove", self._door.action(self._remove), methods=["POST"]),
            *self._forms.routes(),
            *self._pipeds.routes(),
        ]

    async def _first(self, _request: Request, visitor: Visitor) -> Response:
        sees_pipeds = await pipeds_of(self._door, visitor.person) is not None
        return RedirectResponse(pipeds.PAGE if sees_pipeds else PAGE, 303)

    async def _project(self, request: Request, visitor: Visitor) -> Response:
        return await self._shown(request, visitor, None)

    async def _again(self, request: Request, visitor: Visitor, problem: Problem) -> Response:
        return await self._shown(request, visitor, problem)

    async def _shown(self, request: Request, visitor: Visitor, problem: Problem | None) -> Response:
        return self._door.show(
            request,
            "settings.html",
            status=422 if problem else 200,
            webhook=await self._webhook(request, visitor),
            project=await self._forms.view(request, visitor),
            problem=problem,
            sso_fields=FIELDS,
            secret_fields=CLIENT,
        )

    async def _webhook(self, request: Request, visitor: Visitor) -> WebhookView | None:
        person, now = visitor.person, self._door.now()
        try:
            settings = await self._door.cases.webhooks.settings(by=person)
        except Denied:
            return None
        address = self._door.cases.address or str(request.base_url)
        url = f"{address.rstrip('/')}/webhooks/{quote(person.project)}"
        if settings is None:
            return WebhookView(url, None)
        return WebhookView(
            url,
            settings,
            created=moment(settings.created_at, now),
            previous_until=moment(settings.previous_until, now),
            arrived=moment(settings.last.at, now) if settings.last else None,
        )

    async def _rotate(self, request: Request, visitor: Visitor) -> Response:
        async def deed() -> str:
            await self._door.cases.webhooks.rotate(by=visitor.person)
            return PAGE

        # A second secret within a moment would end the grace of the first one at once.
        return RedirectResponse(await self._once.do((visitor.token, PAGE), deed), 303)

    async def _remove(self, _request: Request, visitor: Visitor) -> Response:
        await self._door.cases.webhooks.remove(by=visitor.person)
        return RedirectResponse(PAGE, 303)
