# SPDX-License-Identifier: Apache-2.0
"""The page that registers applications: those that pipeds found in Git, or any other manually."""

import posixpath
from collections.abc import Sequence

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.add_application_view import (
    MAX_ROWS,
    ApplicationFile,
    file_of,
    found_application_row,
    manual_form,
    no_provider_text,
    registered_file,
    search,
    unregistered_applications,
    why_empty,
)
from pipecd.controlplane.console.bulk_result import BulkResult, decode_results, encode_results
from pipecd.controlplane.console.deploy_targets import (
    KIND_NAMES,
    NO_TARGET,
    TargetOptions,
    TargetSelection,
    target_options,
)
from pipecd.controlplane.console.page_context import BrowserSession, FormError, PageContext
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.model.application import MAX_NAME_LENGTH, ApplicationKind
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.piped_pb2 import Piped

PATH = "/applications/add"
MANUAL_FORM = "manual"
_CREATE = Permission(Resource.APPLICATION, Action.CREATE)
_NOT_ALLOWED = "Your roles do not allow this; ask an administrator of the project."
_GONE = "It is no longer unregistered: it was added meanwhile, or removed from Git."
_PIPEDS_HIDDEN = (
    "Your roles do not allow listing pipeds, which is needed to choose a deploy target; "
    "ask an administrator of the project."
)


class AddApplicationPages:
    """Routes and handlers of the page that registers applications."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._context.page(self.show_page), methods=["GET"]),
            Route(PATH, self._context.action(self.add), methods=["POST"]),
            Route(f"{PATH}/several", self._context.action(self.add_several), methods=["POST"]),
        ]

    async def show_page(
        self, request: Request, session: BrowserSession, error: FormError | None = None
    ) -> Response:
        user, text = session.user, request.query_params.get("q", "").strip()
        form = await request.form() if error else FormData()
        piped_id = _field(form, "piped") or request.query_params.get("piped", "")
        pipeds = await self._context.visible_pipeds(user)
        unregistered = await self._unregistered(user, pipeds)
        matching = search(unregistered, text)
        shown = matching[:MAX_ROWS]
        if error:
            # The rejected form stays on the page, however long the list is.
            sent = [info for info in unregistered if file_of(info).anchor == error.form]
            shown = (*sent, *(info for info in shown if info not in sent))
        options = {piped.id: target_options(piped) for piped in pipeds or ()}
        hidden = _PIPEDS_HIDDEN if pipeds is None else ""
        return self._context.render(
            request,
            "add_application.html",
            status=422 if error else 200,
            rows=[
                found_application_row(
                    info,
                    pipeds,
                    options,
                    await self._context.denied_reason(user, _CREATE, info) or hidden,
                )
                for info in shown
            ],
            total=len(unregistered),
            omitted=len(matching) - len(shown),
            text=text,
            empty=why_empty(pipeds),
            pipeds=[piped for piped in pipeds or () if not piped.disabled],
            manual=manual_form(
                pipeds or (),
                piped_id,
                await self._context.denied_reason(user, _CREATE, Application()),
            ),
            is_manual="piped" in request.query_params,
            error=error,
            selected=frozenset(map(str, form.getlist("target"))),
            no_target=NO_TARGET,
            kinds={kind.name: name for kind, name in KIND_NAMES.items()},
            default_file=DEFAULT_CONFIG_FILE,
            max_name_length=MAX_NAME_LENGTH,
        )

    async def _unregistered(
        self, user: User, pipeds: tuple[Piped, ...] | None
    ) -> tuple[ApplicationInfo, ...]:
        infos = await self._context.cases.application_reports.list_unregistered(by=user)
        if not infos:
            return ()
        return unregistered_applications(infos, await self._applications(user), pipeds)

    async def _applications(self, user: User) -> tuple[Application, ...]:
        of_project = ApplicationFilter(user.project)
        return (await self._context.cases.applications.list(of_project, by=user)).items

    async def add(self, request: Request, session: BrowserSession) -> Response:
        form = await request.form()
        is_manual = form.get("form") == MANUAL_FORM
        file = _file(form)
        targets = tuple(map(str, form.getlist("target")))

        async def register() -> str:
            create = self._manual_application if is_manual else self._found_application
            application = await create(form, session.user)
            return await self._context.cases.applications.add(application, by=session.user)

        key = (session.token, PATH, *file, *targets)
        try:
            application_id = await self._context.deduplicator.run(key, register)
        except (UserMistake, Conflict, NotFound, Denied) as e:
            text = _NOT_ALLOWED if isinstance(e, Denied) else str(e)
            error = FormError.of(MANUAL_FORM if is_manual else file.anchor, text, form)
            return await self.show_page(request, session, error)
        return RedirectResponse(f"/applications/{application_id}?added=1", 303)

    async def add_several(self, request: Request, session: BrowserSession) -> Response:
        """Adds each of the found applications with its only deploy target."""
        user, cases = session.user, self._context.cases
        await cases.access.scope(user, _CREATE)
        form = await request.form()
        anchors = tuple(dict.fromkeys(map(str, form.getlist("found"))))[:MAX_ROWS]
        pipeds = await self._context.visible_pipeds(user)

        async def add_each() -> str:
            infos = {file_of(i).anchor: i for i in await self._unregistered(user, pipeds)}
            results: list[BulkResult] = []
            for anchor in anchors:
                info = infos.get(anchor)
                if info is None:
                    results.append(BulkResult("", "", reason=_GONE))
                    continue
                try:
                    options = _options_of(info.piped_id, pipeds).of_kind(ApplicationKind(info.kind))
                    application = self._from_info(info, [options.default], pipeds)
                    id = await cases.applications.add(application, by=user)
                except (UserMistake, Conflict, NotFound, Denied) as e:
                    reason = _NOT_ALLOWED if isinstance(e, Denied) else str(e)
                    results.append(BulkResult("", info.name, reason=reason))
                else:
                    results.append(BulkResult(id, info.name))
            return encode_results(results)

        if not anchors:
            text = "Tick the applications to add."
            return await self.show_page(request, session, FormError.of("several", text, form))
        key = (session.token, request.url.path, *anchors)
        results = decode_results(await self._context.deduplicator.run(key, add_each))
        return self._context.render(request, "bulk_add.html", results=results)

    async def _found_application(self, form: FormData, user: User) -> Application:
        """The application to register from what a piped found in Git."""
        file = _file(form)
        pipeds = await self._context.visible_pipeds(user)
        unregistered = await self._unregistered(user, pipeds)
        info = next((info for info in unregistered if file_of(info) == file), None)
        if info is None:
            raise Conflict(
                f"{posixpath.join(file.path, file.name)} is no longer unregistered: "
                "it was added meanwhile, or removed from Git."
            )
        return self._from_info(info, _targets(form), pipeds)

    @staticmethod
    def _from_info(
        info: ApplicationInfo, targets: Sequence[str], pipeds: tuple[Piped, ...] | None
    ) -> Application:
        options, kind = _options_of(info.piped_id, pipeds), ApplicationKind(info.kind)
        if options.lacks(kind):
            raise UserMistake(no_provider_text(kind))
        selection = options.of_kind(kind).select(targets)
        application = _application(file_of(info), info.name, selection)
        application.kind = info.kind
        application.description = info.description
        application.labels.update(info.labels)
        return application

    async def _manual_application(self, form: FormData, user: User) -> Application:
        """The application to register from the fields of the manual form."""
        file, name = _file(form), _field(form, "name")
        if not name:
            raise UserMistake("Give the application a name.")
        if not file.repository:
            raise UserMistake("Choose a repository.")
        path, config = _directory(file.path), file.name or DEFAULT_CONFIG_FILE
        if "/" in config:
            raise UserMistake("The file name must not contain a slash; use Directory for its path.")
        options = _options_of(file.piped, await self._context.visible_pipeds(user))
        file = ApplicationFile(file.piped, file.repository, path, config)
        application = _application(file, name, options.select(_targets(form)))
        for other in await self._applications(user):
            if (
                registered_file(other) == registered_file(application)
                and other.platform_provider == application.platform_provider
                and other.deploy_targets_by_plugin == application.deploy_targets_by_plugin
            ):
                raise Conflict(f"This application is already registered as {other.name}.")
        return application


def _file(form: FormData) -> ApplicationFile:
    return ApplicationFile(*(_field(form, key) for key in ("piped", "repository", "path", "file")))


def _field(form: FormData, key: str) -> str:
    return str(form.get(key, "")).strip()


def _targets(form: FormData) -> list[str]:
    return [str(value) for value in form.getlist("target")]


def _options_of(piped_id: str, pipeds: tuple[Piped, ...] | None) -> TargetOptions:
    if pipeds is None:
        raise Denied(_PIPEDS_HIDDEN)
    piped = next((piped for piped in pipeds if piped.id == piped_id), None)
    if piped is None:
        raise NotFound("The piped no longer exists; choose another one.")
    return target_options(piped)


def _directory(path: str) -> str:
    """The directory in the form of the API: relative, and of two characters at least."""
    if path.startswith("/"):
        raise UserMistake(
            "The directory is relative to the root of the repository, without a leading slash."
        )
    clean = posixpath.normpath(path or ".")
    if clean.split("/")[0] == "..":
        raise UserMistake("The directory must be inside the repository.")
    if clean == ".":
        return "./"
    return clean if len(clean) > 1 else f"./{clean}"


def _application(file: ApplicationFile, name: str, selection: TargetSelection) -> Application:
    return Application(
        name=name,
        piped_id=file.piped,
        kind=common.ApplicationKind.ValueType(int(selection.kind or 0)),
        git_path=common.ApplicationGitPath(
            repo=common.ApplicationGitRepository(id=file.repository),
            path=file.path,
            config_filename=file.name,
        ),
        platform_provider=selection.provider,
        deploy_targets_by_plugin={
            plugin: DeployTargets(deploy_targets=names)
            for plugin, names in selection.targets.items()
        },
    )
