# SPDX-License-Identifier: Apache-2.0
"""The pages of deployments: the list, one of them with its logs, and what people do to it."""

from collections.abc import Awaitable, Callable
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.applications import command_notice, pipeds_of
from pipecd.controlplane.console.command_notice import Notice
from pipecd.controlplane.console.deployments_view import (
    ChainView,
    DeploymentPage,
    chain_view,
    chosen_stage,
    deployment_page,
)
from pipecd.controlplane.console.list_filters import Address, DeploymentQuery, read_deployments
from pipecd.controlplane.console.listing import by_day, matches
from pipecd.controlplane.console.once import Once
from pipecd.controlplane.console.page_context import Door, Visitor, zone
from pipecd.controlplane.console.piped_status import agent
from pipecd.controlplane.console.pipeline_view import StageView
from pipecd.controlplane.console.stage_log import (
    WINDOW,
    LogWindow,
    Place,
    log_rest,
    log_text,
    log_window,
    read_place,
)
from pipecd.controlplane.console.status_badge import deployment_mark
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.stage_logs import StageLogPart, StageRun
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied, NotFound, UserMistake
from pipecd.proto.model.deployment_pb2 import Deployment

_CHANGE = Permission(Resource.DEPLOYMENT, Action.UPDATE)
_PAGE = 50
# A search reads this many pages before it asks whether to go on.
_MOST_READS = 20
_MOST_LINES = 20_000
_MODES = {"": (False, False), "rollback": (True, False), "keep": (False, True)}
_STATUSES = tuple((int(status), deployment_mark(status).word) for status in DeploymentStatus)


class DeploymentPages:
    """What people see of deployments and do to them."""

    def __init__(self, door: Door, once: Once) -> None:
        self._door, self._once = door, once

    def routes(self) -> list[Route]:
        one, stage = "/deployments/{id}", "/deployments/{id}/stages/{stage}"
        page, action = self._door.page, self._door.action
        return [
            Route("/deployments", page(self._list), methods=["GET"]),
            Route(one, page(self._one), methods=["GET"]),
            Route(f"{stage}/log.txt", page(self._raw), methods=["GET"]),
            Route(f"{one}/cancel", action(self._cancel), methods=["POST"]),
            Route(f"{stage}/approve", action(self._approve), methods=["POST"]),
            Route(f"{stage}/skip", action(self._skip), methods=["POST"]),
        ]

    async def _list(self, request: Request, visitor: Visitor) -> Response:
        person = visitor.person
        query = read_deployments(request.query_params)
        found, cursor = await self._found(query, person)
        pipeds = await pipeds_of(self._door, person) or ()
        names = {piped.id: piped.name for piped in pipeds}
        names |= {d.application_id: d.application_name for d in found}
        address = Address(request.url.path, request.query_params, restart=("before",))
        return self._door.show(
            request,
            "deployments.html",
            days=by_day(found, self._door.now(), zone(request)),
            query=query,
            chips=address.chips(names),
            address=address,
            older=address.to(before=cursor) if cursor else "",
            pipeds=pipeds,
            statuses=_STATUSES,
            moving=sum(not DeploymentStatus(d.status).is_completed for d in found),
            waiting=sum(matches(d, _WAITING) for d in found),
        )

    async def _found(
        self, query: DeploymentQuery, person: User
    ) -> tuple[tuple[Deployment, ...], str]:
        """A page of what matches, and where the next one begins."""
        found: list[Deployment] = []
        cursor = query.before
        for _ in range(_MOST_READS):
            part = await self._door.cases.deployments.listed(
                query.filter(person.project), PageRequest(_PAGE, cursor), by=person
            )
            found += (d for d in part.items if matches(d, query))
            cursor = part.cursor
            if not cursor or len(found) >= _PAGE:
                break
        return tuple(found), cursor

    async def _one(self, request: Request, visitor: Visitor) -> Response:
        person, params = visitor.person, request.query_params
        deployment = await self._door.cases.deployments.get(request.path_params["id"], by=person)
        looks_after = agent(deployment.piped_id, await pipeds_of(self._door, person))
        page = deployment_page(deployment, looks_after, person.name, self._door.now())
        stage = chosen_stage(page, params.get("stage", ""))
        log = await self._log(request, deployment, stage, person)
        told = await command_notice(self._door, request, person)
        return self._door.show(
            request,
            "deployment.html",
            page=page,
            stage=stage,
            is_picked=bool(stage and params.get("stage", "") == stage.id),
            log=log,
            chain=await self._chain(deployment, person),
            wraps=params.get("wrap", "1") != "0",
            notice=told,
            why_not=await self._door.may(person, _CHANGE, deployment),
            address=Address(f"/deployments/{deployment.id}", params, restart=("lines",)),
            topics=_topics(page, stage, log, told),
        )

    async def _chain(self, deployment: Deployment, person: User) -> ChainView | None:
        """The chain of a deployment, if it has one that the person may see."""
        if not deployment.deployment_chain_id:
            return None
        try:
            chain = await self._door.cases.chains.get(deployment.deployment_chain_id, by=person)
        except (Denied, NotFound):
            return None
        return chain_view(chain, deployment.deployment_chain_block_index)

    async def _log(
        self, request: Request, deployment: Deployment, stage: StageView | None, person: User
    ) -> LogWindow | None:
        """The end of the log, or only what follows when a script of ours has the rest."""
        if stage is None:
            return None
        run = StageRun(deployment.id, stage.id, stage.retried_count)
        of, _, place = request.headers.get("HX-Log", "").partition(" ")
        if unquote(of) == f"{stage.id}:{stage.retried_count}":
            after = read_place(place)
            part = await self._read(run, after, person)
            return log_rest(part.blocks, after, completed=part.completed)
        part = await self._read(run, Place(), person)
        size = _lines_wanted(request.query_params.get("lines", ""))
        return log_window(part.blocks, completed=part.completed, size=size)

    async def _read(self, run: StageRun, after: Place, person: User) -> StageLogPart:
        try:
            return await self._door.cases.logs.stage_log(run, after.index + 1, by=person)
        except NotFound:
            return StageLogPart((), completed=False)

    async def _raw(self, request: Request, visitor: Visitor) -> Response:
        id, stage_id = request.path_params["id"], request.path_params["stage"]
        deployment = await self._door.cases.deployments.get(id, by=visitor.person)
        stage = next((stage for stage in deployment.stages if stage.id == stage_id), None)
        if stage is None:
            raise NotFound("the deployment has no such stage")
        run = StageRun(id, stage_id, stage.retried_count)
        part = await self._read(run, Place(), visitor.person)
        text = log_text(part.blocks, ansi=request.query_params.get("ansi") == "1")
        return PlainTextResponse(text)

    async def _cancel(self, request: Request, visitor: Visitor) -> Response:
        mode = str((await request.form()).get("mode", ""))
        if mode not in _MODES:
            raise UserMistake(f"{mode!r} is not a way to cancel", hint="use rollback or keep")
        id = request.path_params["id"]
        with_rollback, without = _MODES[mode]
        cancel = self._door.cases.deployments.cancel
        return await self._ask(
            request,
            visitor,
            lambda: cancel(id, with_rollback, without, by=visitor.person),
            mode,
        )

    async def _approve(self, request: Request, visitor: Visitor) -> Response:
        approve, ids = self._door.cases.deployments.approve, request.path_params
        return await self._ask(
            request, visitor, lambda: approve(ids["id"], ids["stage"], by=visitor.person)
        )

    async def _skip(self, request: Request, visitor: Visitor) -> Response:
        skip, ids = self._door.cases.deployments.skip, request.path_params
        return await self._ask(
            request, visitor, lambda: skip(ids["id"], ids["stage"], by=visitor.person)
        )

    async def _ask(
        self,
        request: Request,
        visitor: Visitor,
        deed: Callable[[], Awaitable[str]],
        mode: str = "",
    ) -> Response:
        """Gives a command and shows the deployment again with what becomes of it."""
        command = await self._once.do((visitor.token, request.url.path, mode), deed)
        picked = str((await request.form()).get("stage", ""))
        query = urlencode({"stage": picked, "cmd": command} if picked else {"cmd": command})
        return RedirectResponse(f"/deployments/{request.path_params['id']}?{query}", 303)


_WAITING = DeploymentQuery((), (), "", "", "", {}, "", waiting=True, before="")


def _lines_wanted(text: str) -> int:
    wanted = int(text) if text.isascii() and text.isdigit() else WINDOW
    return min(max(wanted, WINDOW), _MOST_LINES)


def _topics(
    page: DeploymentPage, stage: StageView | None, log: LogWindow | None, told: Notice | None
) -> str:
    """What the page wants to hear of; a finished deployment only of what is still open."""
    id = page.row.id
    topics = [] if page.completed else [f"dep:{id}", "pipeds"]
    if stage and log and not log.completed and (stage.started or not page.completed):
        topics.append(f"log:{id}:{quote(stage.id, safe='')}:{stage.retried_count}")
    if told and told.is_open:
        topics.append(f"cmd:{told.command_id}")
    return ",".join(topics)
