# SPDX-License-Identifier: Apache-2.0
"""The settings of a project: static admin, single sign-on, roles, groups and the webhook."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.request_origin import lockout_source
from pipecd.controlplane.auth.sessions import DEFAULT_TTL
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console import pipeds
from pipecd.controlplane.console.first_project import MIN_PASSWORD_LENGTH
from pipecd.controlplane.console.flash import Flash
from pipecd.controlplane.console.page_context import (
    BrowserSession,
    Endpoint,
    FormError,
    PageContext,
)
from pipecd.controlplane.console.project_settings_view import (
    FIRST_SSO_FIELDS,
    GITHUB,
    OIDC,
    SSO_FIELDS,
    ProjectSettingsView,
    WebhookView,
    project_settings_view,
    webhook_view,
)
from pipecd.controlplane.console.role_grid import (
    ACTIONS,
    LABELLED,
    RESOURCE_NAMES,
    GridRow,
    field_name,
    labels_name,
    parse_grid,
    policies_of,
)
from pipecd.controlplane.console.sign_in import (
    STATE_COOKIE,
    STATE_SECONDS,
    TRIAL_COOKIE,
    Cookies,
)
from pipecd.controlplane.usecases.projects import CLIENT_FIELDS
from pipecd.controlplane.usecases.sso import CALLBACK, SingleSignOn
from pipecd.model.errors import (
    Denied,
    NotFound,
    PipecdError,
    StorageUnavailable,
    Unauthenticated,
    UserMistake,
)
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from pipecd.wire.credentials import SESSION_COOKIE

PATH = "/settings/project"
_UPDATE = Permission(Resource.PROJECT, Action.UPDATE)
_MAX_SESSION_HOURS = 24 * 365

Change = Callable[[FormData, User], Awaitable[None]]


class ProjectSettingsPages:
    """Routes and handlers of the project settings."""

    def __init__(self, context: PageContext, sso: SingleSignOn) -> None:
        self._context, self._sso = context, sso

    def routes(self) -> list[Route]:
        page = self._context.page
        forms: dict[str, tuple[Change, str]] = {
            "admin/enable": (self.enable_admin, "The static admin can sign in again."),
            "admin/disable": (self.disable_admin, "The static admin is disabled."),
            f"sso/{GITHUB}": (self.set_github, "Single sign-on with GitHub is saved."),
            f"sso/{OIDC}": (self.set_oidc, "Single sign-on with OpenID Connect is saved."),
            "sso/remove": (self.remove_sso, "Single sign-on is removed."),
            "roles": (self.add_role, "The role {name} is added."),
            "roles/grid": (self.add_role_of_grid, "The role {name} is added."),
            "roles/update": (self.update_role, "The role {name} is saved."),
            "roles/update/grid": (self.update_role_of_grid, "The role {name} is saved."),
            "roles/delete": (self.delete_role, "The role {name} is deleted."),
            "groups": (self.add_group, "Members of {group} have the role {role} now."),
            "groups/update": (self.update_group, "Members of {group} have the role {role} now."),
            "groups/delete": (self.delete_group, "Members of {group} have no role any more."),
            "sessions/user": (self.end_sessions_of_user, "The sessions of {username} have ended."),
            "sessions/all": (self.end_all_sessions, "All sessions of the project have ended."),
            "webhook": (self.rotate_webhook_secret, "The webhook has a new secret."),
            "webhook/remove": (self.remove_webhook, "The webhook is removed."),
        }
        return [
            Route("/settings", page(self.redirect_to_first), methods=["GET"]),
            Route(PATH, page(self.show_page), methods=["GET"]),
            Route(
                f"{PATH}/admin",
                self._context.validated_action("admin", self.set_admin, self.show_page),
                methods=["POST"],
            ),
            *(
                Route(
                    f"{PATH}/sso/{provider}/try",
                    self._context.action(try_it),
                    methods=["POST"],
                )
                for provider, try_it in ((GITHUB, self.try_github), (OIDC, self.try_oidc))
            ),
            *(
                Route(f"{PATH}/{name}", self._form(name, change, done), methods=["POST"])
                for name, (change, done) in forms.items()
            ),
        ]

    def _form(self, name: str, change: Change, done: str) -> Endpoint:
        """A form of the page; `done` says what has happened, with values of the form."""

        async def handler(request: Request, session: BrowserSession) -> Response:
            # Before the form is read: who may not change anything gets no hints about its fields.
            await self._context.cases.access.require(session.user, _UPDATE)
            form = await request.form()
            await change(form, session.user)
            values = {key: str(value).strip() for key, value in form.items()}
            flash = Flash(done.format_map(values))
            return self._context.redirect(session, f"{PATH}#{name.partition('/')[0]}", flash)

        return self._context.validated_action(name, handler, self.show_page)

    async def redirect_to_first(self, _request: Request, session: BrowserSession) -> Response:
        """Redirects to the pipeds, or to the project if the user may not list pipeds."""
        lists_pipeds = await self._context.visible_pipeds(session.user) is not None
        return RedirectResponse(pipeds.LIST_PATH if lists_pipeds else PATH, 303)

    async def show_page(
        self, request: Request, session: BrowserSession, error: FormError | None = None
    ) -> Response:
        webhook: WebhookView | None = None
        with suppress(Denied):
            settings = await self._context.cases.webhooks.settings(by=session.user)
            url = f"{self._context.public_url(request)}/webhooks/{quote(session.user.project)}"
            webhook = webhook_view(url, settings, self._context.local_now(request))
        return self._context.render(
            request,
            "project_settings.html",
            status=422 if error else 200,
            webhook=webhook,
            project=await self._project(request, session.user),
            error=error,
            min_password_length=MIN_PASSWORD_LENGTH,
            sso_fields=SSO_FIELDS,
            first_sso_fields=FIRST_SSO_FIELDS,
            secret_fields=CLIENT_FIELDS,
            resources=RESOURCE_NAMES,
            actions=ACTIONS,
            labelled=LABELLED,
            field_name=field_name,
            labels_name=labels_name,
            empty_row=GridRow(),
        )

    async def _project(self, request: Request, user: User) -> ProjectSettingsView | None:
        """The settings; None if the user may not see them."""
        cases = self._context.cases
        try:
            project = await cases.projects.get(by=user)
        except Denied:
            return None
        may_update = not await self._context.denied_reason(user, _UPDATE)
        disabled_reason = ""
        if cases.projects.is_declared(user.project):
            disabled_reason = (
                "This project is declared in the configuration file of the control plane."
            )
        elif not may_update:
            disabled_reason = (
                "Only users who may update the project can change its settings; "
                "ask an administrator."
            )
        return project_settings_view(
            project,
            callback=self._context.public_url(request) + CALLBACK,
            disabled_reason=disabled_reason,
            may_end_sessions=may_update,
        )

    async def rotate_webhook_secret(self, _form: FormData, user: User) -> None:
        async def rotate() -> str:
            await self._context.cases.webhooks.rotate(by=user)
            return PATH

        # A second rotation would end the validity of the first secret at once.
        await self._context.deduplicator.run((PATH, user.project, user.name), rotate)

    async def remove_webhook(self, _form: FormData, user: User) -> None:
        await self._context.cases.webhooks.remove(by=user)

    async def set_admin(self, request: Request, session: BrowserSession) -> Response:
        """Changes the static admin; if it is the user, the session goes on with the new password.

        All other sessions that began with the old password have ended.
        """
        form, cases, project = await request.form(), self._context.cases, session.user.project
        username, password = _required(form, "username"), _required(form, "password")
        is_too_short = len(password) < MIN_PASSWORD_LENGTH
        # Others are denied below, whatever they sent.
        if is_too_short and not await self._context.denied_reason(session.user, _UPDATE):
            raise UserMistake(f"The password needs at least {MIN_PASSWORD_LENGTH} characters.")
        await cases.projects.set_static_admin(username, password, by=session.user)
        saved = Flash(f"The password of {username} is changed.")
        try:
            await cases.sessions.user(session.token, afresh=True)
        except Unauthenticated:
            source = lockout_source(self._context.client_address(request))
            renewed = await cases.sessions.sign_in(project, username, password, source=source)
            session = replace(session, token=renewed.token)
            response = self._context.redirect(session, f"{PATH}#admin", saved)
            seconds = int(DEFAULT_TTL.total_seconds())
            cookies = Cookies(secure=self._context.secure)
            cookies.set(response, SESSION_COOKIE, renewed.token, seconds)
            return response
        return self._context.redirect(session, f"{PATH}#admin", saved)

    async def enable_admin(self, _form: FormData, user: User) -> None:
        await self._context.cases.projects.enable_static_admin(by=user)

    async def disable_admin(self, _form: FormData, user: User) -> None:
        await self._context.cases.projects.disable_static_admin(by=user)

    async def set_github(self, form: FormData, user: User) -> None:
        await self._context.cases.projects.set_sso(_github(form), by=user)

    async def set_oidc(self, form: FormData, user: User) -> None:
        await self._context.cases.projects.set_sso(_oidc(form), by=user)

    async def try_github(self, request: Request, session: BrowserSession) -> Response:
        return await self._try_sso(request, session, _github)

    async def try_oidc(self, request: Request, session: BrowserSession) -> Response:
        return await self._try_sso(request, session, _oidc)

    async def _try_sso(
        self,
        request: Request,
        session: BrowserSession,
        parse: Callable[[FormData], ProjectSSOConfig],
    ) -> Response:
        """Redirects to the provider; its callback shows who would be signed in."""
        try:
            sso = parse(await request.form())
            trial = await self._sso.begin_trial(sso, by=session.user)
        except (StorageUnavailable, Denied, NotFound):
            raise
        except PipecdError as e:
            # The form stays as it is in the other tab.
            return self._context.render(
                request,
                "sso_trial.html",
                status=422,
                identity=None,
                reason=e.message.removeprefix("Internal error: "),
                hint=e.hint,
            )
        # The policy `form-action 'self'` of our pages applies to redirects of a form as well.
        response = self._context.render(request, "redirect.html", target=trial.redirect.url)
        cookies = Cookies(secure=self._context.secure)
        for name, value in (
            (STATE_COOKIE, trial.redirect.cookie),
            (TRIAL_COOKIE, trial.settings),
        ):
            cookies.set(response, name, value, STATE_SECONDS, same_site="Lax")
        return response

    async def remove_sso(self, _form: FormData, user: User) -> None:
        await self._context.cases.projects.remove_sso(by=user)

    async def add_role(self, form: FormData, user: User) -> None:
        policies = parse_policies(_required(form, "policies"))
        await self._context.cases.roles.add(_required(form, "name"), policies, by=user)

    async def update_role(self, form: FormData, user: User) -> None:
        policies = parse_policies(_required(form, "policies"))
        await self._context.cases.roles.update(_required(form, "name"), policies, by=user)

    async def add_role_of_grid(self, form: FormData, user: User) -> None:
        policies = policies_of(parse_grid(_values(form)))
        await self._context.cases.roles.add(_required(form, "name"), policies, by=user)

    async def update_role_of_grid(self, form: FormData, user: User) -> None:
        policies = policies_of(parse_grid(_values(form)))
        await self._context.cases.roles.update(_required(form, "name"), policies, by=user)

    async def delete_role(self, form: FormData, user: User) -> None:
        await self._context.cases.roles.delete(_required(form, "name"), by=user)

    async def add_group(self, form: FormData, user: User) -> None:
        group, role = _required(form, "group"), _required(form, "role")
        await self._context.cases.roles.add_group(group, role, by=user)

    async def update_group(self, form: FormData, user: User) -> None:
        group, role = _required(form, "group"), _required(form, "role")
        await self._context.cases.roles.update_group(group, role, by=user)

    async def delete_group(self, form: FormData, user: User) -> None:
        await self._context.cases.roles.delete_group(_required(form, "group"), by=user)

    async def end_sessions_of_user(self, form: FormData, user: User) -> None:
        await self._context.cases.sessions.end_of_user(_required(form, "username"), by=user)

    async def end_all_sessions(self, _form: FormData, user: User) -> None:
        await self._context.cases.sessions.end_all(by=user)


def _values(form: FormData) -> dict[str, str]:
    return {key: str(value) for key, value in form.items()}


def _required(form: FormData, name: str) -> str:
    value = str(form.get(name, "")).strip()
    if not value:
        raise UserMistake(f"Fill in the {name}.")
    return value


def _session_hours(form: FormData) -> int:
    text = str(form.get("hours", "")).strip() or "0"
    is_number = text.isascii() and text.isdigit() and len(text) <= 5
    if not is_number or int(text) > _MAX_SESSION_HOURS:
        raise UserMistake("The session lifetime must be a whole number of hours, a year at most.")
    return int(text)


def _github(form: FormData) -> ProjectSSOConfig:
    sso = ProjectSSOConfig(
        provider=ProjectSSOConfig.Provider.GITHUB, session_ttl=_session_hours(form)
    )
    sso.github.CopyFrom(ProjectSSOConfig.GitHub(**_sso_values(form, GITHUB)))
    return sso


def _oidc(form: FormData) -> ProjectSSOConfig:
    sso = ProjectSSOConfig(
        provider=ProjectSSOConfig.Provider.OIDC, session_ttl=_session_hours(form)
    )
    values = _sso_values(form, OIDC)
    scopes = values.pop("scopes").split()
    sso.oidc.CopyFrom(ProjectSSOConfig.Oidc(scopes=scopes, **values))
    return sso


def _sso_values(form: FormData, provider: str) -> dict[str, str]:
    """The values of the form; an empty id or secret means that the stored one stays."""
    values = {name: str(form.get(name, "")).strip() for name in SSO_FIELDS[provider]}
    for name, value in values.items():
        is_url = name.endswith(("_url", "_endpoint", "issuer", "_uri"))
        if is_url and value and not value.startswith(("https://", "http://")):
            raise UserMistake(f"{SSO_FIELDS[provider][name]} must begin with https:// or http://.")
    return values
