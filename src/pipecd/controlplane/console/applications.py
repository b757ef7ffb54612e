# SPDX-License-Identifier: Apache-2.0
"""The pages of applications: the list, one of them, and its sync."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.add_application_view import added_notice
from pipecd.controlplane.console.applications_view import application_page
from pipecd.controlplane.console.command_notice import Notice, notice
from pipecd.controlplane.console.deployments_view import deployment_row
from pipecd.controlplane.console.list_filters import SIZES, Address, read_applications
from pipecd.controlplane.console.listing import application_list
from pipecd.controlplane.console.live_state_view import LiveTree, live_tree
from pipecd.controlplane.console.once import Once
from pipecd.controlplane.console.page_context import Door, Visitor
from pipecd.controlplane.console.piped_status import agent
from pipecd.controlplane.console.status_badge import kind_word
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.errors import Denied, NotFound, UserMistake
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped

_SYNC = Permission(Resource.APPLICATION, Action.UPDATE)
_RECENT = PageRequest(size=10)
_KINDS = tuple((int(kind), kind_word(kind)) for kind in ApplicationKind)


class ApplicationPages:
    """What people see of applications."""

    def __init__(self, door: Door, once: Once) -> None:
        self._door, self._once = door, once

    def routes(self) -> list[Route]:
        return [
            Route("/applications", self._door.page(self._list), methods=["GET"]),
            Route("/applications/{id}", self._door.page(self._one), methods=["GET"]),
            Route("/applications/{id}/sync", self._door.action(self._sync), methods=["POST"]),
        ]

    async def _list(self, request: Request, visitor: Visitor) -> Response:
        person = visitor.person
        query = read_applications(request.query_params)
        found = await self._door.cases.applications.listed(query.filter(person.project), by=person)
        pipeds = await pipeds_of(self._door, person) or ()
        names = {piped.id: piped.name for piped in pipeds}
        address = Address(request.url.path, request.query_params, restart=("page",))
        return self._door.show(
            request,
            "applications.html",
            listing=application_list(found.items, query, self._door.now()),
            query=query,
            chips=address.chips(names),
            address=address,
            pipeds=pipeds,
            kinds=_KINDS,
            sizes=SIZES,
        )

    async def _one(self, request: Request, visitor: Visitor) -> Response:
        person, now = visitor.person, self._door.now()
        application = await self._door.cases.applications.get(request.path_params["id"], by=person)
        if application.deleted:
            raise NotFound("Application is not found")
        looks_after = agent(application.piped_id, await pipeds_of(self._door, person))
        recent = await self._recent(application.id, person)
        page = application_page(application, looks_after, now)
        told = await command_notice(self._door, request, person)
        if "added" in request.query_params and not recent:
            told = told or added_notice(looks_after)
        topics = [f"app:{application.id}", "pipeds"]
        topics += [f"dep:{d.id}" for d in recent if not DeploymentStatus(d.status).is_completed]
        topics += [f"cmd:{told.command_id}"] if told and told.is_open else []
        return self._door.show(
            request,
            "application.html",
            page=page,
            recent=tuple(deployment_row(found, now) for found in recent),
            live=await self._live(application.id, person),
            notice=told,
            why_not=page.why_not_sync or await self._door.may(person, _SYNC, application),
            topics=",".join(topics[:20]),
        )

    async def _live(self, application_id: str, person: User) -> LiveTree | None:
        try:
            snapshot = await self._door.cases.livestate.get(application_id, by=person)
        except NotFound:
            return None
        return live_tree(snapshot, self._door.now())

    async def _recent(self, application_id: str, person: User) -> tuple[Deployment, ...]:
        wanted = DeploymentFilter(project=person.project, application_ids=(application_id,))
        try:
            found = await self._door.cases.deployments.listed(wanted, _RECENT, by=person)
        except Denied:
            return ()
        return tuple(sorted(found.items, key=lambda d: -d.created_at))

    async def _sync(self, request: Request, visitor: Visitor) -> Response:
        id = request.path_params["id"]
        form = await request.form()
        strategy = _strategy(str(form.get("strategy", "")))
        command = await self._once.do(
            (visitor.token, request.url.path, strategy.name),
            lambda: self._door.cases.applications.sync(id, strategy, by=visitor.person),
        )
        return RedirectResponse(f"/applications/{id}?cmd={command}", 303)


def _strategy(text: str) -> SyncStrategy:
    known = {"": SyncStrategy.AUTO, **{s.name.lower(): s for s in SyncStrategy}}
    if text not in known:
        raise UserMistake(f"{text!r} is not a way to sync", hint="use auto, quick_sync or pipeline")
    return known[text]


async def pipeds_of(door: Door, person: User) -> tuple[Piped, ...] | None:
    """The pipeds of the project, or None for a person who may not see them."""
    try:
        return await door.cases.pipeds.listed(by=person)
    except Denied:
        return None


async def command_notice(door: Door, request: Request, person: User) -> Notice | None:
    """What became of the command that the address names."""
    id = request.query_params.get("cmd", "")
    if not id:
        return None
    try:
        command = await door.cases.commands.get(id, by=person)
    except (NotFound, Denied):
        return None
    return notice(command, agent(command.piped_id, await pipeds_of(door, person)))
