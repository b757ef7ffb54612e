# SPDX-License-Identifier: Apache-2.0
"""The page of users: who is signed in, with which roles, and the sessions that can be ended."""

from dataclasses import dataclass
from datetime import datetime

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.flash import Flash
from pipecd.controlplane.console.formatting import Timestamp, duration, timestamp
from pipecd.controlplane.console.list_filters import PageUrl
from pipecd.controlplane.console.page_context import BrowserSession, FormError, PageContext
from pipecd.controlplane.usecases.sessions import ActiveSession, ActiveUser, users_of
from pipecd.model.clock import to_unix
from pipecd.model.errors import Denied, UserMistake
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.secrets.session import session_id

PATH = "/settings/users"
_UPDATE = Permission(Resource.PROJECT, Action.UPDATE)
_MAX_USERS = 200


@dataclass(frozen=True)
class UserRow:
    """A user with sessions; `last_seen` is the last sign-in if nothing newer is known."""

    name: str
    roles: tuple[str, ...]
    method: str
    sessions: int
    signed_in: Timestamp | None
    last_seen: Timestamp | None
    is_self: bool


@dataclass(frozen=True)
class SessionRow:
    """One session of a user."""

    id: str
    roles: tuple[str, ...]
    method: str
    signed_in: Timestamp | None
    last_seen: Timestamp | None
    expires: Timestamp | None
    time_left: str
    is_this: bool


def user_row(user: ActiveUser, own_name: str, now: datetime) -> UserRow:
    return UserRow(
        name=user.name,
        roles=user.roles,
        method=_method(is_sso=user.is_sso),
        sessions=user.sessions,
        signed_in=timestamp(user.last_signed_in_at, now),
        last_seen=timestamp(max(user.last_seen_at, user.last_signed_in_at), now),
        is_self=user.name == own_name,
    )


def session_row(session: ActiveSession, own_id: str, now: datetime) -> SessionRow:
    return SessionRow(
        id=session.id,
        roles=session.roles,
        method=_method(is_sso=session.is_sso),
        signed_in=timestamp(session.signed_in_at, now),
        last_seen=timestamp(max(session.last_seen_at, session.signed_in_at), now),
        expires=timestamp(session.expires_at, now),
        time_left=duration(session.expires_at - to_unix(now)),
        is_this=session.id == own_id,
    )


def _method(*, is_sso: bool) -> str:
    return "Single sign-on" if is_sso else "Password"


def way_in(project: Project) -> str:
    """Which sign-in leads to users of the project; empty if only its static admin can sign in."""
    if project.shared_sso_name:
        return project.shared_sso_name
    if not project.HasField("sso"):
        return ""
    return "GitHub" if project.sso.provider == ProjectSSOConfig.GITHUB else "OpenID Connect"


class UserPages:
    """Routes and handlers of the page of users."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        form = self._context.validated_action
        return [
            Route(PATH, self._context.page(self.show_page), methods=["GET"]),
            Route(f"{PATH}/end", form("end", self.end_session, self.show_page), methods=["POST"]),
            Route(
                f"{PATH}/end-user", form("end", self.end_of_user, self.show_page), methods=["POST"]
            ),
        ]

    async def show_page(
        self, request: Request, session: BrowserSession, error: FormError | None = None
    ) -> Response:
        user, now = session.user, self._context.local_now(request)
        text = request.query_params.get("q", "").strip()
        name = request.query_params.get("user", "")
        rows: list[UserRow] = []
        sessions: list[SessionRow] = []
        has_more = False
        denied = await self._context.denied_reason(user, _UPDATE)
        if not denied:
            listed = await self._context.cases.sessions.list(by=user)
            has_more = listed.has_more
            found = [
                each for each in users_of(listed.sessions) if text.lower() in each.name.lower()
            ]
            has_more = has_more or len(found) > _MAX_USERS
            rows = [user_row(each, user.name, now) for each in found[:_MAX_USERS]]
        if name and not denied:
            own = await self._context.cases.sessions.list(user=name, by=user)
            this = session_id(session.token)
            sessions = [session_row(each, this, now) for each in own.sessions]
        return self._context.render(
            request,
            "users.html",
            status=422 if error else 200,
            rows=rows,
            chosen=name,
            sessions=sessions,
            text=text,
            has_more=has_more,
            denied=denied,
            way_in=None if denied else await self._way_in(user),
            error=error,
            url=PageUrl(PATH, request.query_params),
        )

    async def _way_in(self, user: User) -> str | None:
        """What leads to users, as nobody is added on the page; None if this user may not know."""
        try:
            return way_in(await self._context.cases.projects.get(by=user))
        except Denied:
            return None

    async def end_session(self, request: Request, session: BrowserSession) -> Response:
        form = await request.form()
        id, name = str(form.get("session", "")), str(form.get("username", ""))
        await self._context.cases.sessions.end_one(id, by=session.user)
        url = PageUrl(PATH, QueryParams()).with_params(user=name)
        return self._context.redirect(session, url, Flash(f"A session of {name} has ended."))

    async def end_of_user(self, request: Request, session: BrowserSession) -> Response:
        name = str((await request.form()).get("username", "")).strip()
        if not name:
            raise UserMistake("Fill in the username.")
        await self._context.cases.sessions.end_of_user(name, by=session.user)
        return self._context.redirect(session, PATH, Flash(f"The sessions of {name} have ended."))
