# SPDX-License-Identifier: Apache-2.0
"""The settings of one application: edit, move to another piped, enable, disable, delete."""
# v0 applications have a platform provider, which the protobuf files call deprecated.
# pyright: reportDeprecated=false

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.deploy_targets import (
    KIND_NAMES,
    NO_TARGET,
    TargetOptions,
    target_options,
)
from pipecd.controlplane.console.flash import Flash
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    Endpoint,
    FormError,
    PageContext,
)
from pipecd.controlplane.console.status_badge import PipedStatus, piped_status
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import Denied, NotFound, UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.piped_pb2 import Piped

_PATH = "/applications/{id}/settings"
_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)
_DELETE = Permission(Resource.APPLICATION, Action.DELETE)

Change = Callable[[Application, FormData, User], Awaitable[str]]


@dataclass(frozen=True)
class MoveOption:
    """A piped that watches the repository of the application, and so could deploy it."""

    piped: PipedStatus
    is_current: bool


def move_options(application: Application, pipeds: tuple[Piped, ...]) -> tuple[MoveOption, ...]:
    """The pipeds that can deploy the application, the current one first."""
    repository = application.git_path.repo.id
    return tuple(
        sorted(
            (
                MoveOption(piped_status(piped.id, pipeds), piped.id == application.piped_id)
                for piped in pipeds
                if piped.id == application.piped_id
                or (not piped.disabled and any(r.id == repository for r in piped.repositories))
            ),
            key=lambda option: (not option.is_current, option.piped.name),
        )
    )


def current_targets(application: Application) -> frozenset[str]:
    """The values of the form for what the application is deployed to."""
    if application.deploy_targets_by_plugin:
        return frozenset(
            f"{plugin}/{target}"
            for plugin, targets in application.deploy_targets_by_plugin.items()
            for target in targets.deploy_targets
        )
    provider = application.platform_provider or application.cloud_provider
    kind = ApplicationKind(application.kind).name
    return frozenset({f"{kind}/{provider}"} if provider else {NO_TARGET})


class ApplicationSettingsPages:
    """Routes and handlers of the settings of an application."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        forms: dict[str, Change] = {
            "edit": self.edit,
            "enable": self.enable,
            "disable": self.disable,
            "delete": self.delete,
        }
        return [
            Route(_PATH, self._context.page(self.show_page), methods=["GET"]),
            *(
                Route(f"{_PATH}/{name}", self._form(name, change), methods=["POST"])
                for name, change in forms.items()
            ),
        ]

    def _form(self, name: str, change: Change) -> Endpoint:
        permission = _DELETE if name == "delete" else _UPDATE

        async def handler(request: Request, session: BrowserSession) -> Response:
            await self._context.cases.access.scope(session.user, permission)
            application = await self._application(request, session.user)
            location = await change(application, await request.form(), session.user)
            deleted = Flash(f"{application.name} is deleted. Its deployments stay readable.")
            flash = deleted if name == "delete" else None
            return self._context.redirect(session, location, flash)

        return self._context.validated_action(name, handler, self.show_page)

    async def _application(self, request: Request, user: User) -> Application:
        application = await self._context.cases.applications.get(request.path_params["id"], by=user)
        if application.deleted:
            raise NotFound("Application is not found")
        return application

    async def show_page(
        self, request: Request, session: BrowserSession, error: FormError | None = None
    ) -> Response:
        user = session.user
        application = await self._application(request, user)
        pipeds = await self._context.visible_pipeds(user) or ()
        form = await request.form() if error else FormData()
        requested = str(form.get("piped", "")) or request.query_params.get("piped", "")
        options = move_options(application, pipeds)
        chosen = next((o for o in options if o.piped.id == requested), None)
        piped_id = chosen.piped.id if chosen else application.piped_id
        piped = next((piped for piped in pipeds if piped.id == piped_id), None)
        kind = ApplicationKind(application.kind)
        return self._context.render(
            request,
            "application_settings.html",
            status=422 if error else 200,
            application=application,
            options=options,
            piped=piped_status(piped_id, pipeds),
            is_move=piped_id != application.piped_id,
            targets=target_options(piped).of_kind(kind) if piped else TargetOptions(),
            platform=KIND_NAMES[kind],
            selected=(
                frozenset(map(str, form.getlist("target")))
                if error and error.form == "edit"
                else current_targets(application)
            ),
            file=application.git_path.config_filename or DEFAULT_CONFIG_FILE,
            kinds={kind.name: name for kind, name in KIND_NAMES.items()},
            no_target=NO_TARGET,
            error=error,
            disabled_reason=await self._context.denied_reason(user, _UPDATE, application),
            delete_disabled_reason=await self._context.denied_reason(user, _DELETE, application),
        )

    async def edit(self, application: Application, form: FormData, user: User) -> str:
        file = str(form.get("file", "")).strip()
        if not file or "/" in file:
            raise UserMistake("Fill in the name of the configuration file, without a directory.")
        pipeds = await self._context.visible_pipeds(user)
        if pipeds is None:
            raise Denied("your roles do not allow to list pipeds")
        piped_id = str(form.get("piped", ""))
        piped = next((piped for piped in pipeds if piped.id == piped_id), None)
        if piped is None:
            raise UserMistake("The piped no longer exists; choose another one.")
        repository = application.git_path.repo.id
        if all(r.id != repository for r in piped.repositories):
            raise UserMistake(
                f"Piped {piped.name} does not watch the repository {repository}; add it to its "
                "configuration first."
            )
        options = target_options(piped).of_kind(ApplicationKind(application.kind))
        selection = options.select([str(value) for value in form.getlist("target")])
        update = ApplicationUpdate(
            piped_id=piped.id,
            platform_provider=selection.provider,
            config_filename=file,
            deploy_targets={
                plugin: DeployTargets(deploy_targets=names)
                for plugin, names in selection.targets.items()
            },
        )
        if not options.options:
            # There was nothing to choose from, so what it is deployed to stays.
            provider = application.platform_provider or application.cloud_provider
            update = replace(update, platform_provider=provider, deploy_targets=None)
        await self._context.cases.applications.update(application.id, update, by=user)
        return f"/applications/{application.id}"

    async def enable(self, application: Application, _form: FormData, user: User) -> str:
        await self._context.cases.applications.enable(application.id, by=user)
        return f"/applications/{application.id}"

    async def disable(self, application: Application, _form: FormData, user: User) -> str:
        await self._context.cases.applications.disable(application.id, by=user)
        return f"/applications/{application.id}"

    async def delete(self, application: Application, _form: FormData, user: User) -> str:
        await self._context.cases.applications.delete(application.id, by=user)
        return "/applications"
