# SPDX-License-Identifier: Apache-2.0
"""The pages of pipeds: the list, and one of them with what is kept about it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.command_notice import Notice
from pipecd.controlplane.console.once import Once
from pipecd.controlplane.console.page_context import Door, Visitor
from pipecd.controlplane.console.pipeds_forms import PAGE, PipedForms
from pipecd.controlplane.console.pipeds_view import (
    PipedRow,
    piped_page,
    piped_rows,
    restart_notice,
    summary,
)
from pipecd.controlplane.console.project_settings_view import Problem
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.model.errors import Denied, NotFound
from pipecd.proto.model.piped_pb2 import Piped

_CREATE = Permission(Resource.PIPED, Action.CREATE)
_UPDATE = Permission(Resource.PIPED, Action.UPDATE)
# A stream follows 20 topics, and one of them is that of all pipeds.
_MOST_RESTARTS = 19


class PipedPages:
    """What people see of pipeds."""

    def __init__(self, door: Door, once: Once) -> None:
        self._door = door
        self._forms = PipedForms(door, once, self._shown)

    def routes(self) -> list[Route]:
        return [
            Route(PAGE, self._door.page(self._list), methods=["GET"]),
            Route(f"{PAGE}/{{id}}", self._door.page(self._one), methods=["GET"]),
            *self._forms.routes(),
        ]

    async def _list(self, request: Request, visitor: Visitor) -> Response:
        return await self._show_list(request, visitor, None)

    async def _one(self, request: Request, visitor: Visitor) -> Response:
        return await self._show_one(request, visitor, None)

    async def _shown(self, request: Request, visitor: Visitor, problem: Problem) -> Response:
        show = self._show_one if "id" in request.path_params else self._show_list
        return await show(request, visitor, problem)

    async def _show_list(
        self, request: Request, visitor: Visitor, problem: Problem | None
    ) -> Response:
        person, cases = visitor.person, self._door.cases
        pipeds = await cases.pipeds.listed(by=person)
        rows = piped_rows(pipeds, await cases.pipeds.sights(pipeds, by=person), self._door.now())
        return self._door.show(
            request,
            "settings_pipeds.html",
            status=422 if problem else 200,
            rows=rows,
            summary=summary(rows),
            why_not=await self._door.may(person, _CREATE),
            problem=problem,
            topics=_topics(rows, problem),
        )

    async def _show_one(
        self, request: Request, visitor: Visitor, problem: Problem | None
    ) -> Response:
        person, cases = visitor.person, self._door.cases
        piped = await cases.pipeds.get(request.path_params["id"], by=person)
        sights = await cases.pipeds.sights((piped,), by=person)
        page = piped_page(piped, sights[piped.id], self._door.now())
        return self._door.show(
            request,
            "settings_piped.html",
            status=422 if problem else 200,
            page=page,
            applications=await self._applications(piped, person),
            notice=await self._notice(request, piped, person),
            why_not=await self._door.may(person, _UPDATE),
            problem=problem,
            topics=_topics((page.row,), problem),
        )

    async def _applications(self, piped: Piped, person: User) -> int | None:
        """How many enabled ones it looks after; None for somebody who may not see them."""
        wanted = ApplicationFilter(person.project, enabled=True, piped_id=piped.id)
        try:
            return len((await self._door.cases.applications.listed(wanted, by=person)).items)
        except Denied:
            return None

    async def _notice(self, request: Request, piped: Piped, person: User) -> Notice | None:
        """What became of the restart that the address names."""
        id = request.query_params.get("cmd", "")
        if not id:
            return None
        try:
            command = await self._door.cases.commands.get(id, by=person)
        except (NotFound, Denied):
            return None
        is_mine = command.HasField("restart_piped") and command.piped_id == piped.id
        return restart_notice(command, piped) if is_mine else None


def _topics(rows: tuple[PipedRow, ...], problem: Problem | None) -> str:
    """What the page wants to hear of; one that tells of a mistake stays as it is."""
    if problem:
        return ""
    restarts = [f"cmd:{row.restart}" for row in rows if row.restart]
    return ",".join(["pipeds", *restarts[:_MOST_RESTARTS]])
