# SPDX-License-Identifier: Apache-2.0
"""Who may come in: the session of a request, forged forms, the way back after signing in."""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from pipecd.controlplane.auth.rbac import Permission
from pipecd.controlplane.auth.request_origin import Networks, client_address, is_cross_site
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.formatting import initials
from pipecd.controlplane.console.rendering import Renderer
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import Labelled
from pipecd.model.clock import Now
from pipecd.model.errors import Denied, Unauthenticated
from pipecd.wire.credentials import SESSION_COOKIE

_LONGEST_RETURN = 2048


@dataclass(frozen=True)
class Visitor:
    """A signed-in person and the secret that their forms must repeat."""

    person: User
    token: str = field(repr=False)

    @property
    def csrf(self) -> str:
        """Known only to pages of this session, as no script can read the cookie it is made from."""
        return hmac.digest(self.token.encode(), b"form of the console", "sha256").hex()


Endpoint = Callable[[Request], Awaitable[ASGIApp]]
Page = Callable[[Request, Visitor], Awaitable[ASGIApp]]


class Door:
    """What every page needs: the use cases, the templates, and a guard."""

    def __init__(
        self,
        cases: UseCases,
        renderer: Renderer,
        *,
        secure: bool,
        now: Now,
        proxies: Networks = (),
    ) -> None:
        self.cases, self.now, self.secure = cases, now, secure
        self._renderer, self._proxies = renderer, proxies

    def page(self, show: Page) -> Endpoint:
        """A page for people who are signed in; others are led to the sign-in and back."""

        async def endpoint(request: Request) -> ASGIApp:
            try:
                visitor = await self.visitor(request)
            except Unauthenticated:
                return self._lead_in(request)
            return await show(request, visitor)

        return endpoint

    def action(self, act: Page) -> Endpoint:
        """A form that changes something; refused unless one of our own pages sent it."""

        async def endpoint(request: Request) -> ASGIApp:
            check_origin(request)
            try:
                visitor = await self.visitor(request)
            except Unauthenticated:
                return RedirectResponse("/login", 303)
            form = await request.form()
            if not hmac.compare_digest(str(form.get("csrf", "")).encode(), visitor.csrf.encode()):
                raise Denied(
                    "this form is not from your session", hint="reload the page and try again"
                )
            return await act(request, visitor)

        return endpoint

    async def visitor(self, request: Request) -> Visitor:
        """Whoever is signed in, or Unauthenticated."""
        token = request.cookies.get(SESSION_COOKIE, "")
        if not token:
            raise Unauthenticated("nobody is signed in")
        visitor = Visitor(await self.cases.sessions.person(token), token)
        request.state.visitor = visitor
        return visitor

    def client(self, request: Request) -> str:
        """The address of the machine that a request comes from."""
        peer = request.client.host if request.client else ""
        told = ",".join(request.headers.getlist("X-Forwarded-For"))
        return client_address(peer, told, self._proxies)

    async def may(self, person: User, permission: Permission, thing: Labelled | None = None) -> str:
        """An empty text, or why the person may not do this to the thing, or to all of its kind."""
        try:
            scope = await self.cases.access.scope(person, permission)
        except Denied:
            covered = False
        else:
            covered = scope.is_everything if thing is None else scope.covers(thing.labels)
        if covered:
            return ""
        roles = ", ".join(person.roles) or "no role"
        return f"Your roles ({roles}) do not allow this; ask an administrator of the project."

    def show(
        self, request: Request, template: str, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """The page, or only its main part when a script of ours asks for it."""
        fragment = request.headers.get("HX-Request") == "true"
        visitor: Visitor | None = getattr(request.state, "visitor", None)
        html = self._renderer.render(
            template,
            layout="fragment.html" if fragment else "shell.html",
            path=request.url.path,
            person=visitor.person if visitor else None,
            initials=initials(visitor.person.name) if visitor else "",
            csrf=visitor.csrf if visitor else "",
            other_project=_other_project(request, visitor),
            server_now=self.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            **context,
        )
        return HTMLResponse(html, status, headers={"Vary": "HX-Request, Cookie"})

    def _lead_in(self, request: Request) -> Response:
        if request.headers.get("HX-Request") == "true":
            return HTMLResponse("", 401)
        if needs_bounce(request):
            return self.show(request, "bounce.html", to=_here(request))
        return RedirectResponse(f"/login?return={quote(_here(request), safe='')}", 303)


def needs_bounce(request: Request) -> bool:
    """Whether the strict session cookie was held back because the link stood on another site.

    A page of ours that leads to the same address is not held back, so the question is asked again
    from there before anyone is called signed out.
    """
    headers = request.headers
    return (
        SESSION_COOKIE not in request.cookies
        and headers.get("Sec-Fetch-Site") == "cross-site"
        and headers.get("Sec-Fetch-Mode") == "navigate"
    )


def check_origin(request: Request) -> None:
    """Refuses a form that a page of another origin sent."""
    if is_cross_site(request.headers):
        raise Denied(
            "this form comes from another site", hint="open the page here and send it again"
        )


def safe_return(path: str) -> str:
    """The path when it stays on this host, else nothing."""
    inside = path.startswith("/") and not path.startswith(("//", "/\\"))
    printable = all(32 < ord(c) < 127 for c in path)
    return path if inside and printable and len(path) <= _LONGEST_RETURN else ""


def zone(request: Request) -> tzinfo:
    """The time zone the browser told, UTC without one."""
    name = request.cookies.get("tz", "")
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError):
        return UTC


def _here(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{quote(request.url.path)}{query}"


def _other_project(request: Request, visitor: Visitor | None) -> str:
    """The project a link was meant for when it is not the one the visitor is in."""
    wanted = request.query_params.get("project", "")
    return wanted if visitor and wanted != visitor.person.project else ""
