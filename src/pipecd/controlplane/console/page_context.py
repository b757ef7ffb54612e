# SPDX-License-Identifier: Apache-2.0
"""What the handlers of all pages share: the session of a request, rendering, forms and CSRF."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from pipecd.controlplane.auth.rbac import Permission
from pipecd.controlplane.auth.request_origin import client_address, is_cross_site
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.flash import FLASH_COOKIE, Flash, decode_flash, encode_flash
from pipecd.controlplane.console.formatting import initials, sentence, zone_name
from pipecd.controlplane.console.rendering import Renderer
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import Labelled
from pipecd.model.address import Networks
from pipecd.model.clock import Now, to_unix
from pipecd.model.command import CommandStatus
from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    NotFound,
    PipecdError,
    Unauthenticated,
    UserMistake,
)
from pipecd.observe.version import build_version
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.wire.credentials import SESSION_COOKIE

_VERSION = build_version()
_MAX_RETURN_PATH = 2048
# Links of a page repeat the parameters of its address, each of a hundred rows several times.
_MAX_PARAMETERS = 100
_DUPLICATE_WINDOW = timedelta(seconds=3)
# How long the page shows what became of a command, in seconds.
_SHOWN_SUCCESS, _SHOWN_FAILURE = 60, 600


@dataclass(frozen=True)
class BrowserSession:
    """A signed-in user and the session token of the browser."""

    user: User
    token: str = field(repr=False)

    @property
    def csrf(self) -> str:
        """The CSRF token of forms; scripts of other sites cannot read the cookie it is made of."""
        return hmac.digest(self.token.encode(), b"form of the console", "sha256").hex()


@dataclass(frozen=True)
class FormError:
    """Why a form was rejected, and the values to show in it again."""

    form: str
    text: str
    values: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, name: str, text: str, form: FormData) -> "FormError":
        hidden = ("csrf", "password", "secret", "client_secret")
        return cls(name, text, {key: str(v) for key, v in form.items() if key not in hidden})


def error_text(error: PipecdError) -> str:
    """What was wrong with a form, and the remedy."""
    if not error.hint:
        return error.message
    return f"{sentence(error.message)} {sentence(error.hint)}"


Endpoint = Callable[[Request], Awaitable[ASGIApp]]
Handler = Callable[[Request, BrowserSession], Awaitable[ASGIApp]]
ShowFormError = Callable[[Request, BrowserSession, FormError], Awaitable[Response]]


def denied_text(roles: Sequence[str]) -> str:
    """Why a user with these roles is not offered something."""
    match roles:
        case []:
            return "You have no role that allows this; ask an administrator of the project."
        case [role]:
            subject = f"Your role ({role}) does"
        case _:
            subject = f"Your roles ({', '.join(roles)}) do"
    return f"{subject} not allow this; ask an administrator of the project."


class PageContext:
    """What every page needs: use cases, templates, the session check and the CSRF check."""

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
        self.renderer, self._proxies = renderer, proxies
        self.deduplicator = FormDeduplicator(now)

    def local_now(self, request: Request) -> datetime:
        """Now in the time zone of the browser, in which view models write times."""
        return self.now().astimezone(browser_time_zone(request))

    def page(self, handler: Handler) -> Endpoint:
        """An endpoint for signed-in users; others are sent to the sign-in page and back."""

        async def endpoint(request: Request) -> ASGIApp:
            if request.url.query.count("&") >= _MAX_PARAMETERS:
                raise UserMistake(
                    f"the address has more than {_MAX_PARAMETERS} parameters",
                    hint="remove some of them",
                )
            try:
                session = await self.authenticate(request)
            except Unauthenticated:
                if request.headers.get("HX-Request") == "true":
                    return HTMLResponse("", 401)
                target = path_and_query(request)
                if needs_same_site_redirect(request):
                    return self.render(request, "redirect.html", target=target)
                return sign_in_redirect(request, target, "page")
            return await handler(request, session)

        return endpoint

    def action(self, handler: Handler) -> Endpoint:
        """An endpoint for a form that changes something; rejects forms of other sites."""

        async def endpoint(request: Request) -> ASGIApp:
            reject_cross_site(request)
            try:
                session = await self.authenticate(request)
            except Unauthenticated:
                return sign_in_redirect(request, referring_page(request), "form")
            form = await request.form()
            if not hmac.compare_digest(str(form.get("csrf", "")).encode(), session.csrf.encode()):
                raise Denied(
                    "the CSRF token of this form does not belong to your session",
                    hint="reload the page and try again",
                )
            return await handler(request, session)

        return endpoint

    def validated_action(self, name: str, handler: Handler, show_error: ShowFormError) -> Endpoint:
        """Like `action`; when the form is rejected, shows its page again with the reason."""

        async def validated(request: Request, session: BrowserSession) -> ASGIApp:
            try:
                return await handler(request, session)
            except (UserMistake, AlreadyExists, Conflict, NotFound) as e:
                error = FormError.of(name, error_text(e), await request.form())
                return await show_error(request, session, error)

        return self.action(validated)

    async def authenticate(self, request: Request) -> BrowserSession:
        """The session of a request; raises Unauthenticated without one."""
        token = request.cookies.get(SESSION_COOKIE, "")
        if not token:
            raise Unauthenticated("nobody is signed in")
        session = BrowserSession(await self.cases.sessions.user(token), token)
        request.state.session = session
        return session

    def client_address(self, request: Request) -> str:
        """The IP address of the client, as trusted proxies report it."""
        peer = request.client.host if request.client else ""
        forwarded = ",".join(request.headers.getlist("X-Forwarded-For"))
        return client_address(peer, forwarded, self._proxies)

    async def denied_reason(
        self, user: User, permission: Permission, resource: Labelled | None = None
    ) -> str:
        """Why the user lacks the permission for a resource, or for all; empty if granted."""
        try:
            scope = await self.cases.access.scope(user, permission)
        except Denied:
            granted = False
        else:
            granted = scope.is_everything if resource is None else scope.covers(resource.labels)
        if granted:
            return ""
        return denied_text(user.roles)

    async def visible_pipeds(self, user: User) -> tuple[Piped, ...] | None:
        """The pipeds of the project by name; None if the user may not list them."""
        try:
            pipeds = await self.cases.pipeds.list(by=user)
            return tuple(sorted(pipeds, key=lambda piped: (piped.name.casefold(), piped.id)))
        except Denied:
            return None

    def redirect(
        self, session: BrowserSession, location: str, flash: Flash | None = None
    ) -> RedirectResponse:
        """The response to a form: the page to go to, and what that page shows about the form."""
        response = RedirectResponse(location, 303)
        path = urlsplit(location).path
        response.set_cookie(
            FLASH_COOKIE,
            encode_flash(flash, path, session.token) if flash else "",
            max_age=flash.seconds if flash else 0,
            secure=self.secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def requested_command(
        self, request: Request, user: User, is_about: Callable[[Command], bool]
    ) -> Command | None:
        """The command in the `cmd` parameter, which redirects after a form carry.

        A page shows only commands that are about its object. A minute after it has been handled
        a command is old news, and its failure after ten.
        """
        command_id = request.query_params.get("cmd", "")
        if not command_id:
            return None
        try:
            command = await self.cases.commands.get(command_id, by=user)
        except (NotFound, Denied):
            return None
        if not is_about(command):
            return None
        succeeded = command.status == CommandStatus.SUCCEEDED
        shown_until = command.updated_at + (_SHOWN_SUCCESS if succeeded else _SHOWN_FAILURE)
        is_handled = command.status != CommandStatus.NOT_HANDLED_YET
        return None if is_handled and to_unix(self.now()) > shown_until else command

    def public_url(self, request: Request) -> str:
        """The base URL of the control plane, without a slash at the end."""
        return (self.cases.address or str(request.base_url)).rstrip("/")

    def render(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """The page, or only its `<main>` when live.js fetches it."""
        is_fragment = request.headers.get("HX-Request") == "true"
        session: BrowserSession | None = getattr(request.state, "session", None)
        linked_project = request.query_params.get("project", "")
        html = self.renderer.render(
            template,
            layout="fragment.html" if is_fragment else "layout.html",
            path=request.url.path,
            theme=chosen_theme(request),
            zone_key=str(browser_time_zone(request)),
            zone=zone_name(self.local_now(request)),
            user=session.user if session else None,
            initials=initials(session.user.name) if session else "",
            csrf=session.csrf if session else "",
            other_project=(
                linked_project if session and linked_project != session.user.project else ""
            ),
            program_version=_VERSION,
            flash=_flash(request, session) if session else None,
            server_now=self.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            **values,
        )
        return HTMLResponse(html, status, headers={"Vary": "HX-Request, Cookie"})


def _flash(request: Request, session: BrowserSession) -> Flash | None:
    value = request.cookies.get(FLASH_COOKIE, "")
    return decode_flash(value, request.url.path, session.token) if value else None


class FormDeduplicator:
    """Runs a form once when a double click submits it several times within seconds."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._results: dict[tuple[str, ...], tuple[datetime, str]] = {}
        self._locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    async def run(
        self,
        key: tuple[str, ...],
        action: Callable[[], Awaitable[str]],
        is_over: Callable[[str], Awaitable[bool]] | None = None,
    ) -> str:
        """The result of the action, or the one it had for the same key within the window.

        A form that is submitted after what the earlier result has led to `is_over` is another one.
        """
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            oldest = self._now() - _DUPLICATE_WINDOW
            self._results = {k: result for k, result in self._results.items() if result[0] > oldest}
            earlier = self._results.get(key)
            if earlier and not (is_over and await is_over(earlier[1])):
                return earlier[1]
            result = await action()
            self._results[key] = (self._now(), result)
            return result


def needs_same_site_redirect(request: Request) -> bool:
    """Whether the browser withheld the strict session cookie because of a link on another site.

    A page of our own that redirects to the same address makes the request same-site, and the
    browser sends the cookie.
    """
    headers = request.headers
    return (
        SESSION_COOKIE not in request.cookies
        and headers.get("Sec-Fetch-Site") == "cross-site"
        and headers.get("Sec-Fetch-Mode") == "navigate"
    )


def sign_in_redirect(request: Request, target: str, expired: str) -> Response:
    """Sends the user to the sign-in page, which says that the session has ended if there was one.

    `expired` tells what for: to see a page, or to submit a form, of which nothing is kept.
    """
    # A cookie ends with its session. A form was shown to somebody who had one; a page may not be.
    had_session = request.method == "POST" or SESSION_COOKIE in request.cookies
    params = {"return": target, "expired": expired if had_session else ""}
    query = urlencode({key: value for key, value in params.items() if value})
    return RedirectResponse(f"/login?{query}" if query else "/login", 303)


def referring_page(request: Request) -> str:
    """The page of this host that a form was submitted on; empty if the browser does not say."""
    try:
        referrer = urlsplit(request.headers.get("Referer", ""))
    except ValueError:
        return ""
    if referrer.netloc != request.headers.get("Host", ""):
        return ""
    return safe_return(f"{referrer.path}?{referrer.query}" if referrer.query else referrer.path)


def reject_cross_site(request: Request) -> None:
    """Raises Denied for a form that a page of another origin submitted."""
    if is_cross_site(request.headers):
        raise Denied(
            "this form comes from another site",
            hint="open the page on this control plane and submit the form there",
        )


def safe_return(path: str) -> str:
    """The path if it stays on this host, else an empty text."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\"))
    is_printable = all(32 < ord(c) < 127 for c in path)
    return path if is_local and is_printable and len(path) <= _MAX_RETURN_PATH else ""


def path_and_query(request: Request) -> str:
    """The address of a request on this host."""
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{quote(request.url.path)}{query}"


def chosen_theme(request: Request) -> str:
    """The theme in the `theme` cookie that console.js sets; empty means that of the system."""
    theme = request.cookies.get("theme", "")
    return theme if theme in ("light", "dark") else ""


def browser_time_zone(request: Request) -> tzinfo:
    """The time zone in the `tz` cookie that times.js sets; UTC without one."""
    name = request.cookies.get("tz", "")
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError):
        return UTC
