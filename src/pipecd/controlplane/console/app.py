# SPDX-License-Identifier: Apache-2.0
"""The whole console as one application: routes of every page, headers, and pages for errors."""

from contextlib import suppress
from secrets import token_hex

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response

from pipecd.controlplane.auth.request_origin import Networks
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.console.add_application import AddingPages
from pipecd.controlplane.console.applications import ApplicationPages
from pipecd.controlplane.console.deployments import DeploymentPages
from pipecd.controlplane.console.headers import SafeAnswers, dress
from pipecd.controlplane.console.live_follow import Live
from pipecd.controlplane.console.once import Once
from pipecd.controlplane.console.page_context import Door
from pipecd.controlplane.console.project_settings import SettingsPages
from pipecd.controlplane.console.rendering import Assets, Renderer
from pipecd.controlplane.console.sign_in import SignIn
from pipecd.controlplane.console.sso import SsoSignIn
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.sso import NO_SSO, SingleSignOn, SsoSettings
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import (
    Conflict,
    Denied,
    NotFound,
    PipecdError,
    StorageUnavailable,
    Unauthenticated,
    Unavailable,
    UserMistake,
)

log = structlog.get_logger()

_STATUS: dict[type[PipecdError], int] = {
    UserMistake: 422,
    Unauthenticated: 401,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    Unavailable: 503,
}
_TITLES = {
    401: "You are signed out",
    403: "You may not do this",
    404: "Not found",
    405: "This address only takes forms",
    409: "That is not possible now",
    422: "That cannot be understood",
    500: "Something broke on our side",
    503: "Not available right now",
}


def create_console(
    cases: UseCases,
    bus: Bus,
    *,
    insecure_cookie: bool,
    sso: SsoSettings = NO_SSO,
    proxies: Networks = (),
    now: Now = utc_now,
) -> Starlette:
    """The console over these use cases; cookies are for TLS only unless they may be insecure.

    `proxies` are trusted to tell whom they speak for.
    """
    assets = Assets()
    renderer = Renderer(assets)
    door = Door(cases, renderer, secure=not insecure_cookie, now=now, proxies=proxies)
    once = Once(now)
    elsewhere = SingleSignOn(cases.projects, cases.sessions, sso, now)
    errors = ErrorPages(door)
    live = Live(door, bus, renderer)
    console = Starlette(
        routes=[
            *assets.routes(),
            *SignIn(door, elsewhere).routes(),
            *SsoSignIn(door, elsewhere).routes(),
            # Before the pages of applications, which would take "add" for an id.
            *AddingPages(door, once).routes(),
            *ApplicationPages(door, once).routes(),
            *DeploymentPages(door, once).routes(),
            *SettingsPages(door, once).routes(),
            *live.routes(),
        ],
        middleware=[
            Middleware(SafeAnswers, secure=not insecure_cookie),
            Middleware(GZipMiddleware),
        ],
        exception_handlers={
            PipecdError: errors.expected,
            HTTPException: errors.by_status,
            Exception: errors.unexpected,
        },
    )
    console.state.live = live
    return console


class ErrorPages:
    """Every failure is a page with one sentence and one thing to do."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def expected(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, PipecdError):
            raise error
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        if isinstance(error, StorageUnavailable):
            log.warning("page without its data", path=request.url.path, error=str(error))
            return await self._page(request, status, StorageUnavailable.PUBLIC_MESSAGE)
        return await self._page(request, status, error.message, error.hint)

    async def by_status(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        text = "No page has this address." if error.status_code == 404 else error.detail
        return await self._page(request, error.status_code, text)

    async def unexpected(self, request: Request, error: Exception) -> Response:
        number = token_hex(4)
        log.error("page failed", request=number, path=request.url.path, exc_info=error)
        text = f"It is noted as {number}; tell that number to whoever runs this control plane."
        answer = await self._page(request, 500, text)
        # This answer is made outside of the middleware.
        dress(answer.headers, secure=self._door.secure)
        return answer

    async def _page(self, request: Request, status: int, text: str, hint: str = "") -> Response:
        # While the store is away nobody can be asked for who they are.
        if status != 503 and not hasattr(request.state, "visitor"):
            with suppress(PipecdError):
                await self._door.visitor(request)
        return self._door.show(
            request,
            "error.html",
            status=status,
            code=status,
            title=_TITLES.get(status, "That did not work"),
            text=text,
            hint=hint,
        )
