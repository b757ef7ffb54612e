# SPDX-License-Identifier: Apache-2.0
"""The page of API keys: what programs such as pipectl authenticate with."""

from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.console.formatting import Timestamp, timestamp
from pipecd.controlplane.console.page_context import BrowserSession, FormError, PageContext
from pipecd.controlplane.usecases.api_keys import (
    MANAGE_SESSIONS,
    READ_ONLY,
    READ_WRITE,
    READ_WRITE_APPROVE,
    KeyRole,
)
from pipecd.model.errors import UserMistake
from pipecd.proto.model.apikey_pb2 import APIKey

PATH = "/settings/api-key"
_CREATE = Permission(Resource.API_KEY, Action.CREATE)
_UPDATE = Permission(Resource.API_KEY, Action.UPDATE)
_UPDATE_PROJECT = Permission(Resource.PROJECT, Action.UPDATE)
# The roles of a key by their values in the form: the role, its name, and what its keys may do.
ROLES = {
    "read": (READ_ONLY, "Read only", "lists and reads, and changes nothing"),
    "write": (READ_WRITE, "Read and write", "also syncs, adds and changes applications"),
    "approve": (
        READ_WRITE_APPROVE,
        "Read, write and approve",
        "also approves and rejects stages, in your name",
    ),
    "sessions": (
        MANAGE_SESSIONS,
        "Manage sessions",
        "reads, and lists and ends the sessions of users",
    ),
}
_ROLE_NAMES = {role: name for role, name, _ in ROLES.values()}


@dataclass(frozen=True)
class ApiKeyRow:
    """One key of the list; the key itself is stored nowhere."""

    id: str
    name: str
    role: str
    creator: str
    created: Timestamp | None
    last_used: Timestamp | None
    disabled: bool


def api_key_row(key: APIKey, role: KeyRole, now: datetime) -> ApiKeyRow:
    return ApiKeyRow(
        id=key.id,
        name=key.name,
        role=_ROLE_NAMES[role],
        creator=key.creator,
        created=timestamp(key.created_at, now),
        last_used=timestamp(key.last_used_at, now),
        disabled=key.disabled,
    )


class ApiKeyPages:
    """Routes and handlers of the page of API keys."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        form = self._context.validated_action
        return [
            Route(PATH, self._context.page(self.show_page), methods=["GET"]),
            Route(PATH, form("add", self.generate, self.show_page), methods=["POST"]),
            Route(
                f"{PATH}/{{id}}/disable",
                form("disable", self.disable, self.show_page),
                methods=["POST"],
            ),
        ]

    async def show_page(
        self, request: Request, session: BrowserSession, error: FormError | None = None
    ) -> Response:
        user, now = session.user, self._context.local_now(request)
        keys = await self._context.cases.api_keys.list(by=user)
        roles = await self._context.cases.api_keys.roles(by=user)
        offered = dict(ROLES)
        if await self._context.denied_reason(user, _UPDATE_PROJECT):
            del offered["sessions"]
        # Those in use come first, the newest on top.
        ordered = sorted(keys, key=lambda key: (key.disabled, -key.created_at, key.id))
        return self._context.render(
            request,
            "api_keys.html",
            status=422 if error else 200,
            rows=tuple(
                api_key_row(key, roles.get(key.id, KeyRole(key.role)), now) for key in ordered
            ),
            roles=offered,
            may_disable=not await self._context.denied_reason(user, _UPDATE),
            disabled_reason=await self._context.denied_reason(user, _CREATE),
            error=error,
        )

    async def generate(self, request: Request, session: BrowserSession) -> Response:
        form = await request.form()
        name, role = str(form.get("name", "")).strip(), str(form.get("role", ""))
        if not name:
            raise UserMistake("Give the key a name that says what it is for.")
        if role not in ROLES:
            raise UserMistake("Choose what the key may do.")
        key_role = ROLES[role][0]
        generate = self._context.cases.api_keys.generate
        # A double click must not generate a second key whose secret nobody sees.
        key = await self._context.deduplicator.run(
            (session.token, PATH, name, role),
            lambda: generate(name, **key_role._asdict(), by=session.user),
        )
        return self._context.render(
            request,
            "api_key.html",
            name=name,
            role=ROLES[role][1],
            key=key,
            address=self._context.public_url(request),
        )

    async def disable(self, request: Request, session: BrowserSession) -> Response:
        await self._context.cases.api_keys.disable(request.path_params["id"], by=session.user)
        return RedirectResponse(PATH, 303)
