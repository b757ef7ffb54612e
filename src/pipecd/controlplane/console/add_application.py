# SPDX-License-Identifier: Apache-2.0
"""The page on which applications are added: those found in Git, or any other by hand."""

import posixpath

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.config.application import filename
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.add_application_view import (
    MOST_ROWS,
    ByHand,
    File,
    FoundRow,
    file_of,
    found_row,
    matching,
    no_provider,
    offered,
    registered_file,
    why_empty,
)
from pipecd.controlplane.console.applications import pipeds_of
from pipecd.controlplane.console.deploy_targets import NO_TARGET, Choice, Places, places_of
from pipecd.controlplane.console.once import Once
from pipecd.controlplane.console.page_context import Door, Visitor
from pipecd.controlplane.console.piped_status import agent
from pipecd.controlplane.console.project_settings_view import Problem
from pipecd.controlplane.console.status_badge import kind_word
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.piped_pb2 import Piped

PAGE = "/applications/add"
BY_HAND = "by-hand"
_KINDS = {kind.name: kind_word(kind) for kind in ApplicationKind}
_CREATE = Permission(Resource.APPLICATION, Action.CREATE)
_NOT_ALLOWED = "Your roles do not allow this; ask an administrator of the project."
_PIPEDS_UNSEEN = (
    "Your roles do not let you see the pipeds, so you cannot choose where it is deployed to; "
    "ask an administrator of the project."
)


class AddingPages:
    """Offers what pipeds found in Git, and registers what somebody chooses."""

    def __init__(self, door: Door, once: Once) -> None:
        self._door, self._once = door, once

    def routes(self) -> list[Route]:
        return [
            Route(PAGE, self._door.page(self._page), methods=["GET"]),
            Route(PAGE, self._door.action(self._add), methods=["POST"]),
        ]

    async def _page(self, request: Request, visitor: Visitor) -> Response:
        return await self._shown(request, visitor, request.query_params.get("piped", ""))

    async def _shown(
        self, request: Request, visitor: Visitor, piped_id: str, problem: Problem | None = None
    ) -> Response:
        person, text = visitor.person, request.query_params.get("q", "").strip()
        pipeds = await pipeds_of(self._door, person)
        found = await self._found(person, pipeds)
        rows = matching(found, text)
        shown = rows[:MOST_ROWS]
        if problem:
            # What somebody just sent stays before their eyes, however long the list is.
            sent = [info for info in found if file_of(info).anchor == problem.form]
            shown = (*sent, *(info for info in shown if info not in sent))
        form = await request.form() if problem else FormData()
        return self._door.show(
            request,
            "add.html",
            status=422 if problem else 200,
            rows=await self._rows(shown, pipeds, person),
            total=len(found),
            omitted=len(rows) - len(shown),
            text=text,
            empty=why_empty(pipeds),
            pipeds=[piped for piped in pipeds or () if not piped.disabled],
            by_hand=await self._by_hand(piped_id, pipeds, person),
            problem=problem,
            picked=frozenset(map(str, form.getlist("place"))),
            no_target=NO_TARGET,
            kinds=_KINDS,
            default_file=filename.DEFAULT,
        )

    async def _found(
        self, person: User, pipeds: tuple[Piped, ...] | None
    ) -> tuple[ApplicationInfo, ...]:
        infos = await self._door.cases.application_reports.unregistered_of(by=person)
        if not infos:
            return ()
        return offered(infos, await self._applications(person), pipeds)

    async def _applications(self, person: User) -> tuple[Application, ...]:
        everything = ApplicationFilter(person.project)
        return (await self._door.cases.applications.listed(everything, by=person)).items

    async def _rows(
        self,
        infos: tuple[ApplicationInfo, ...],
        pipeds: tuple[Piped, ...] | None,
        person: User,
    ) -> tuple[FoundRow, ...]:
        places = {piped.id: places_of(piped) for piped in pipeds or ()}
        unseen = _PIPEDS_UNSEEN if pipeds is None else ""
        return tuple(
            [
                found_row(
                    info, pipeds, places, await self._door.may(person, _CREATE, info) or unseen
                )
                for info in infos
            ]
        )

    async def _by_hand(
        self, piped_id: str, pipeds: tuple[Piped, ...] | None, person: User
    ) -> ByHand | None:
        """The form for the chosen piped, else the first that can be used; None without any."""
        enabled = [piped for piped in pipeds or () if not piped.disabled]
        if not enabled:
            return None
        chosen = max(enabled, key=lambda piped: (piped.id == piped_id, bool(piped.repositories)))
        return ByHand(
            agent(chosen.id, pipeds),
            tuple(repository.id for repository in chosen.repositories),
            places_of(chosen),
            await self._door.may(person, _CREATE, Application()),
        )

    async def _add(self, request: Request, visitor: Visitor) -> Response:
        form = await request.form()
        is_found = form.get("form") != BY_HAND
        file = _file(form)
        values = tuple(map(str, form.getlist("place")))

        async def deed() -> str:
            draft = await (self._found_draft if is_found else self._typed_draft)(
                form, visitor.person
            )
            return await self._door.cases.applications.add(draft, by=visitor.person)

        try:
            id = await self._once.do((visitor.token, PAGE, *file, *values), deed)
        except (UserMistake, Conflict, NotFound, Denied) as e:
            typed = {key: str(value) for key, value in form.items() if key != "csrf"}
            text = _NOT_ALLOWED if isinstance(e, Denied) else str(e)
            problem = Problem(file.anchor if is_found else BY_HAND, text, typed)
            return await self._shown(request, visitor, file.piped, problem)
        return RedirectResponse(f"/applications/{id}?added=1", 303)

    async def _found_draft(self, form: FormData, person: User) -> Application:
        file = _file(form)
        pipeds = await pipeds_of(self._door, person)
        found = await self._found(person, pipeds)
        info = next((info for info in found if file_of(info) == file), None)
        if info is None:
            raise Conflict(
                f"{posixpath.join(file.path, file.name)} is not waiting to be added any more: "
                "somebody has added it, or it is gone from Git."
            )
        places, kind = _places(file.piped, pipeds), ApplicationKind(info.kind)
        if places.lacks(kind):
            raise UserMistake(no_provider(kind))
        draft = _draft(file, info.name, places.of_kind(kind).choose(_values(form)))
        draft.kind = info.kind
        draft.description = info.description
        draft.labels.update(info.labels)
        return draft

    async def _typed_draft(self, form: FormData, person: User) -> Application:
        file, name = _file(form), _typed(form, "name")
        if not name:
            raise UserMistake("Give the application a name.")
        if not file.repository:
            raise UserMistake("Choose a repository.")
        path, config = _directory(file.path), file.name or filename.DEFAULT
        if "/" in config:
            raise UserMistake("The file lies in the directory, so its name has no slash.")
        places = _places(file.piped, await pipeds_of(self._door, person))
        file = File(file.piped, file.repository, path, config)
        draft = _draft(file, name, places.choose(_values(form)))
        for other in await self._applications(person):
            if _is_same(other, draft):
                raise Conflict(f"It is registered already, as {other.name}.")
        return draft


def _file(form: FormData) -> File:
    return File(*(_typed(form, key) for key in ("piped", "repository", "path", "file")))


def _typed(form: FormData, key: str) -> str:
    return str(form.get(key, "")).strip()


def _values(form: FormData) -> list[str]:
    return [str(value) for value in form.getlist("place")]


def _places(piped_id: str, pipeds: tuple[Piped, ...] | None) -> Places:
    if pipeds is None:
        raise Denied(_PIPEDS_UNSEEN)
    piped = next((piped for piped in pipeds if piped.id == piped_id), None)
    if piped is None:
        raise NotFound("The piped is not there any more; choose another one.")
    return places_of(piped)


def _directory(path: str) -> str:
    """The directory as the wire has it: never absolute, and two characters at least."""
    if path.startswith("/"):
        raise UserMistake("Write the directory from the root of the repository, without a slash.")
    clean = posixpath.normpath(path or ".")
    if clean.split("/")[0] == "..":
        raise UserMistake("The directory must be inside of the repository.")
    if clean == ".":
        return "./"
    return clean if len(clean) > 1 else f"./{clean}"


def _draft(file: File, name: str, choice: Choice) -> Application:
    kind = common.ApplicationKind.ValueType(int(choice.kind or 0))
    return Application(
        name=name,
        piped_id=file.piped,
        kind=kind,
        git_path=common.ApplicationGitPath(
            repo=common.ApplicationGitRepository(id=file.repository),
            path=file.path,
            config_filename=file.name,
        ),
        platform_provider=choice.provider,
        deploy_targets_by_plugin={
            plugin: DeployTargets(deploy_targets=names) for plugin, names in choice.targets.items()
        },
    )


def _is_same(one: Application, other: Application) -> bool:
    """Whether both deploy the same file to the same places."""
    return registered_file(one) == registered_file(other) and (
        one.platform_provider == other.platform_provider
        and one.deploy_targets_by_plugin == other.deploy_targets_by_plugin
    )
