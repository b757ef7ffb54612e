# SPDX-License-Identifier: Apache-2.0
"""The web console as one ASGI application: routes of every page, security headers, error pages.

A console page consists of the same five parts everywhere; `deployments` is the example to copy:

- route: in `routes()` of the area's class, `DeploymentPages` in `deployments.py`, which is listed
  in `create_console` below. `context.page` is for signed-in users, `context.action` for forms.
- handler: a method of that class. It calls use cases, builds a view model and renders a template.
- view model: frozen dataclasses and pure functions in `deployments_view.py`. All wording and
  formatting happens here; `status_badge`, `status_text` and `formatting` are shared by all pages.
- template: `templates/deployments.html`, `templates/deployment.html`. It works without JavaScript;
  `data-topics` names what the page follows by server-sent events (`live_updates.py`).
- tests: `test_deployments.py` (HTTP), `test_deployments_view.py` (tables) and a visit in a real
  browser below `browser/`; `tests/servers/console_pages.py` names its addresses for the tests of
  all pages.
"""

from collections.abc import Mapping
from contextlib import suppress
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipecd.controlplane.auth.http_headers import PAGE_HEADERS
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.console.add_application import AddApplicationPages
from pipecd.controlplane.console.api_browser import ApiBrowserPage
from pipecd.controlplane.console.api_keys import ApiKeyPages
from pipecd.controlplane.console.application_settings import ApplicationSettingsPages
from pipecd.controlplane.console.applications import ApplicationPages
from pipecd.controlplane.console.bulk_enable import BulkEnablePages
from pipecd.controlplane.console.chains import ChainPages
from pipecd.controlplane.console.deployments import DeploymentPages
from pipecd.controlplane.console.documentation import DocumentationPages
from pipecd.controlplane.console.drift_pages import DriftPages
from pipecd.controlplane.console.encrypt_secret import EncryptSecretPages
from pipecd.controlplane.console.events import EventPages
from pipecd.controlplane.console.first_project import FirstProjectPage
from pipecd.controlplane.console.insights import InsightPages
from pipecd.controlplane.console.live_state import LiveStatePages
from pipecd.controlplane.console.live_updates import LiveUpdates
from pipecd.controlplane.console.overview import OverviewPages
from pipecd.controlplane.console.page_context import PageContext
from pipecd.controlplane.console.pipeds import PipedPages
from pipecd.controlplane.console.plan_previews import PlanPreviewPages
from pipecd.controlplane.console.project_settings import ProjectSettingsPages
from pipecd.controlplane.console.rendering import Assets, Renderer
from pipecd.controlplane.console.role_grid import permission_text
from pipecd.controlplane.console.search import SearchPages
from pipecd.controlplane.console.sign_in import SignInPages
from pipecd.controlplane.console.traces import TracePages
from pipecd.controlplane.console.users import UserPages
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import MissingPermission
from pipecd.controlplane.usecases.sso import NO_SSO, SingleSignOn, SsoSettings
from pipecd.model.address import Networks
from pipecd.model.clock import Now, utc_now
from pipecd.model.count import exceeds
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

MAX_BODY_BYTES = 1024 * 1024
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    )
)
_STATUS: dict[type[PipecdError], int] = {
    UserMistake: 422,
    Unauthenticated: 401,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    Unavailable: 503,
}
# The pages that a rejected form returns to.
_OBJECT_PAGES = {
    "/applications/": "application",
    "/deployments/": "deployment",
    "/settings/piped/": "piped",
}
# Where an error below them leads back to.
_LISTS = {
    "/applications": "applications",
    "/deployments": "deployments",
    "/chains": "chains",
    "/events": "events",
    "/plan-previews": "plan previews",
    "/settings/piped": "the pipeds",
    "/help": "the documentation",
}
_TITLES = {
    401: "You are signed out",
    403: "Permission denied",
    404: "Not found",
    405: "This address only accepts forms",
    409: "Not possible in the current state",
    422: "Invalid request",
    500: "Internal error",
    503: "Temporarily unavailable",
}


def create_console(
    cases: UseCases,
    bus: Bus,
    *,
    insecure_cookie: bool,
    sso: SsoSettings = NO_SSO,
    proxies: Networks = (),
    api_document: Mapping[str, Any] = MappingProxyType({}),
    now: Now = utc_now,
) -> Starlette:
    """The console over these use cases; cookies are `Secure` unless `insecure_cookie` is set.

    The `X-Forwarded-For` header is trusted from `proxies` only. `api_document` is the OpenAPI
    document that the API browser shows.
    """
    assets = Assets()
    secure = not insecure_cookie
    context = PageContext(cases, Renderer(assets), secure=secure, now=now, proxies=proxies)
    single_sign_on = SingleSignOn(cases.projects, cases.sessions, cases.used_codes, sso, now)
    errors = ErrorPages(context)
    live_updates = LiveUpdates(context, bus)
    console = Starlette(
        routes=[
            *assets.routes(),
            *SignInPages(context, single_sign_on).routes(),
            *FirstProjectPage(context, sso.encryption_key).routes(),
            *OverviewPages(context).routes(),
            # Before the pages of applications, which would take "add" for an id.
            *AddApplicationPages(context).routes(),
            # Before the page of an application, which would take "drift" for an id.
            *DriftPages(context).routes(),
            *BulkEnablePages(context).routes(),
            *ApplicationPages(context).routes(),
            *LiveStatePages(context).routes(),
            *ApplicationSettingsPages(context).routes(),
            *EncryptSecretPages(context).routes(),
            *DeploymentPages(context).routes(),
            *PlanPreviewPages(context).routes(),
            *ChainPages(context).routes(),
            *TracePages(context).routes(),
            *EventPages(context).routes(),
            *InsightPages(context).routes(),
            *PipedPages(context).routes(),
            *ApiKeyPages(context).routes(),
            *ProjectSettingsPages(context, single_sign_on).routes(),
            *UserPages(context).routes(),
            *ApiBrowserPage(context, api_document).routes(),
            *SearchPages(context).routes(),
            *DocumentationPages(context).routes(),
            *live_updates.routes(),
        ],
        middleware=[
            Middleware(SecurityMiddleware, secure=secure),
            Middleware(GZipMiddleware),
        ],
        exception_handlers={
            PipecdError: errors.expected,
            HTTPException: errors.by_status,
            ClientDisconnect: errors.incomplete,
            Exception: errors.unexpected,
        },
    )
    console.state.live_updates = live_updates
    return console


class ErrorPages:
    """Renders every failure as a page with the reason and one thing to do."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    async def expected(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, PipecdError):
            raise error
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        if isinstance(error, StorageUnavailable):
            log.warning("datastore unavailable", path=request.url.path, error=str(error))
            return await self._page(request, status, StorageUnavailable.PUBLIC_MESSAGE)
        text, hint = error.message, error.hint
        # The use cases deny with upstream's text, which is also the title of the page.
        if text == "Permission Denied":
            text = "your roles do not allow this"
            right = "does"
            if isinstance(error, MissingPermission):
                right = f"may {permission_text(error.permission)}"
            hint = f"ask an administrator of the project for a role that {right}"
        return await self._page(request, status, text, hint)

    async def by_status(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        is_missing = error.status_code == 404
        text = "There is no page at this address." if is_missing else error.detail
        return await self._page(request, error.status_code, text)

    async def incomplete(self, request: Request, error: Exception) -> Response:
        """The client is gone before its form was complete; nobody reads this response."""
        del request, error
        return PlainTextResponse("The form is incomplete.", 400)

    async def unexpected(self, request: Request, error: Exception) -> Response:
        error_id = token_hex(4)
        log.error("request failed", error_id=error_id, path=request.url.path, exc_info=error)
        text = (
            f"The error is logged as {error_id}. Report this number to the operator of this "
            "control plane."
        )
        response = await self._page(request, 500, text)
        # Starlette sends this response outside of the middleware.
        add_security_headers(response.headers, secure=self._context.secure)
        return response

    async def _page(self, request: Request, status: int, text: str, hint: str = "") -> Response:
        # While the datastore is unavailable no session can be checked.
        if status != 503 and not hasattr(request.state, "session"):
            with suppress(PipecdError):
                await self._context.authenticate(request)
        path, is_rejected = request.url.path, status in (403, 409, 422)
        link = ("/overview", "Go to the overview")
        for prefix, noun in _LISTS.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                link = (prefix, f"Go to {noun}")
        for prefix, noun in _OBJECT_PAGES.items():
            if path.startswith(prefix) and is_rejected:
                object_id = path.removeprefix(prefix).partition("/")[0]
                link = (prefix + object_id, f"Back to the {noun}")
        if status in (500, 503):
            link = (path, "Try again")
        elif not hasattr(request.state, "session"):
            link = ("/login", "Sign in")
        elif status == 403 and link[0] == path:
            link = ("/login?switch=1", "Sign in as another user")
        return self._context.render(
            request,
            "error.html",
            status=status,
            code=status,
            link=link,
            title=_TITLES.get(status, "The request failed"),
            text=text,
            hint=hint,
        )


class BodyTooLarge(Exception):
    """A request body of more than `MAX_BODY_BYTES`."""


class SecurityMiddleware:
    """Adds the security headers and rejects large request bodies."""

    def __init__(self, app: ASGIApp, *, secure: bool) -> None:
        self._app, self._secure = app, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if exceeds(Headers(scope=scope).get("content-length", ""), MAX_BODY_BYTES):
            await PlainTextResponse("The form is too large.", 413)(scope, receive, send)
            return
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise BodyTooLarge
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_security_headers(MutableHeaders(scope=message), secure=self._secure)
            await send(message)

        try:
            await self._app(scope, limited_receive, send_with_headers)
        except BodyTooLarge:
            await PlainTextResponse("The form is too large.", 413)(scope, receive, send)


def add_security_headers(headers: MutableHeaders, *, secure: bool) -> None:
    """Adds the content security policy and its companions; `secure` adds HSTS."""
    headers.update({**PAGE_HEADERS, "Content-Security-Policy": CONTENT_SECURITY_POLICY})
    headers.setdefault("Cache-Control", "no-store")
    if secure:
        headers["Strict-Transport-Security"] = "max-age=31536000"
