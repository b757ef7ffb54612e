# SPDX-License-Identifier: Apache-2.0
"""The forms of the settings page: administrator, sign-in, roles and groups."""

from collections.abc import Awaitable, Callable

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.page_context import Door, Endpoint, Visitor
from pipecd.controlplane.console.project_settings_view import (
    FIELDS,
    GITHUB,
    OIDC,
    Problem,
    ProjectView,
    project_view,
)
from pipecd.controlplane.usecases.projects import CLIENT
from pipecd.controlplane.usecases.sso import CALLBACK
from pipecd.model.errors import AlreadyExists, Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model.project_pb2 import ProjectSSOConfig

PAGE = "/settings/project"
_UPDATE = Permission(Resource.PROJECT, Action.UPDATE)
_LONGEST_HOURS = 24 * 365

Deed = Callable[[FormData, User], Awaitable[None]]
Shown = Callable[[Request, Visitor, Problem], Awaitable[Response]]


class ProjectForms:
    """Changes who may enter the project; a form that cannot be taken is shown again."""

    def __init__(self, door: Door, shown: Shown) -> None:
        self._door, self._shown = door, shown

    def routes(self) -> list[Route]:
        forms: dict[str, Deed] = {
            "admin": self._set_admin,
            "admin/enable": self._enable_admin,
            "admin/disable": self._disable_admin,
            f"sso/{GITHUB}": self._set_github,
            f"sso/{OIDC}": self._set_oidc,
            "sso/remove": self._remove_sso,
            "roles": self._add_role,
            "roles/update": self._update_role,
            "roles/delete": self._delete_role,
            "groups": self._add_group,
            "groups/delete": self._delete_group,
        }
        return [
            Route(f"{PAGE}/{name}", self._taken(name, deed), methods=["POST"])
            for name, deed in forms.items()
        ]

    async def view(self, request: Request, visitor: Visitor) -> ProjectView | None:
        """The project, or None for somebody who may not even see its settings."""
        cases = self._door.cases
        try:
            project = await cases.projects.get(by=visitor.person)
        except Denied:
            return None
        address = cases.address or str(request.base_url)
        return project_view(
            project,
            callback=address.rstrip("/") + CALLBACK,
            why_not=await self._why_not(visitor.person),
        )

    async def _why_not(self, person: User) -> str:
        if self._door.cases.projects.is_declared(person.project):
            return "This project is declared in the configuration file of the control plane."
        try:
            await self._door.cases.access.require(person, _UPDATE)
        except Denied:
            return "Only people who may change the project can do this; ask an administrator."
        return ""

    def _taken(self, name: str, deed: Deed) -> Endpoint:
        async def act(request: Request, visitor: Visitor) -> Response:
            form = await request.form()
            try:
                await deed(form, visitor.person)
            except (UserMistake, AlreadyExists, Conflict, NotFound) as e:
                typed = {key: str(v) for key, v in form.items() if key not in ("csrf", "password")}
                return await self._shown(request, visitor, Problem(name, e.message, typed))
            return RedirectResponse(f"{PAGE}#{name.partition('/')[0]}", 303)

        return self._door.action(act)

    async def _set_admin(self, form: FormData, person: User) -> None:
        username, password = _required(form, "username"), _required(form, "password")
        await self._door.cases.projects.set_static_admin(username, password, by=person)

    async def _enable_admin(self, _form: FormData, person: User) -> None:
        await self._door.cases.projects.enable_static_admin(by=person)

    async def _disable_admin(self, form: FormData, person: User) -> None:
        project = await self._door.cases.projects.get(by=person)
        has_sso = project.HasField("sso") or project.shared_sso_name
        if not has_sso and str(form.get("confirm", "")) != person.project:
            raise Conflict(
                "Nobody could sign in any more, as there is no single sign-on. "
                f"Type {person.project} to disable the administrator all the same."
            )
        await self._door.cases.projects.disable_static_admin(by=person)

    async def _set_github(self, form: FormData, person: User) -> None:
        sso = ProjectSSOConfig(provider=ProjectSSOConfig.Provider.GITHUB, session_ttl=_hours(form))
        sso.github.CopyFrom(ProjectSSOConfig.GitHub(**_fields(form, GITHUB)))
        await self._door.cases.projects.set_sso(sso, by=person)

    async def _set_oidc(self, form: FormData, person: User) -> None:
        sso = ProjectSSOConfig(provider=ProjectSSOConfig.Provider.OIDC, session_ttl=_hours(form))
        fields = _fields(form, OIDC)
        scopes = fields.pop("scopes").split()
        sso.oidc.CopyFrom(ProjectSSOConfig.Oidc(scopes=scopes, **fields))
        await self._door.cases.projects.set_sso(sso, by=person)

    async def _remove_sso(self, _form: FormData, person: User) -> None:
        await self._door.cases.projects.remove_sso(by=person)

    async def _add_role(self, form: FormData, person: User) -> None:
        policies = parse_policies(_required(form, "policies"))
        await self._door.cases.roles.add(_required(form, "name"), policies, by=person)

    async def _update_role(self, form: FormData, person: User) -> None:
        policies = parse_policies(_required(form, "policies"))
        await self._door.cases.roles.update(_required(form, "name"), policies, by=person)

    async def _delete_role(self, form: FormData, person: User) -> None:
        await self._door.cases.roles.delete(_required(form, "name"), by=person)

    async def _add_group(self, form: FormData, person: User) -> None:
        group, role = _required(form, "group"), _required(form, "role")
        await self._door.cases.roles.add_group(group, role, by=person)

    async def _delete_group(self, form: FormData, person: User) -> None:
        await self._door.cases.roles.delete_group(_required(form, "group"), by=person)


def _required(form: FormData, name: str) -> str:
    value = str(form.get(name, "")).strip()
    if not value:
        raise UserMistake(f"Fill in the {name}.")
    return value


def _hours(form: FormData) -> int:
    text = str(form.get("hours", "")).strip() or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > _LONGEST_HOURS:
        raise UserMistake("A session lasts a whole number of hours, a year at most.")
    return int(text)


def _fields(form: FormData, provider: str) -> dict[str, str]:
    """What was typed; the id and the secret are never shown, so empty ones are kept as stored."""
    typed = {name: str(form.get(name, "")).strip() for name in FIELDS[provider]}
    shown = {name: value for name, value in typed.items() if name not in CLIENT}
    for name, value in shown.items():
        if name.endswith(("_url", "_endpoint", "issuer", "_uri")) and value:
            _check_address(FIELDS[provider][name], value)
    return typed


def _check_address(label: str, value: str) -> None:
    if not value.startswith(("https://", "http://")):
        raise UserMistake(f"{label} must begin with https:// or http://.")
