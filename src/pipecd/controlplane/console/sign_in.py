# SPDX-License-Identifier: Apache-2.0
"""Signing in and out."""

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.sessions import DEFAULT_TTL
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.console.cookies import ERROR, STATE, Cookies, remembered
from pipecd.controlplane.console.page_context import (
    Door,
    check_origin,
    needs_bounce,
    safe_return,
)
from pipecd.controlplane.usecases.sessions import ATTEMPTS_PER_MINUTE
from pipecd.controlplane.usecases.sso import SignInOptions, SingleSignOn
from pipecd.model.errors import Denied, NotFound, PipecdError, Unauthenticated, Unavailable
from pipecd.wire.credentials import SESSION_COOKIE

_REQUIRED = (
    ("project", "Missing project id"),
    ("username", "Missing username"),
    ("password", "Missing password"),
)


class SignIn:
    """The sign-in page, the endpoint of the static administrator, and the way out."""

    def __init__(self, door: Door, sso: SingleSignOn) -> None:
        self._door, self._sso = door, sso
        self._cookies = Cookies(secure=door.secure)
        self._attempts = Throttle(ATTEMPTS_PER_MINUTE, now=door.now)

    def routes(self) -> list[Route]:
        return [
            Route("/", self._front, methods=["GET"]),
            Route("/login", self._form, methods=["GET"]),
            Route("/auth/login/static", self._enter, methods=["GET", "POST"]),
            Route("/auth/logout", self._leave, methods=["GET", "POST"]),
        ]

    async def _front(self, request: Request) -> Response:
        return await self._form(request)

    async def _form(self, request: Request) -> Response:
        query = request.query_params
        back = safe_return(query.get("return", ""))
        project = query.get("project", "")
        try:
            visitor = await self._door.visitor(request)
        except Unauthenticated:
            if needs_bounce(request):
                return self._door.show(request, "bounce.html", to=_again(request))
        else:
            elsewhere = "switch" in query or project not in ("", visitor.person.project)
            if request.url.path == "/" or not elsewhere:
                return RedirectResponse(back or "/applications", 302)
        told = request.cookies.get(ERROR, "").strip('"')
        answer = await self._page(request, {"project": project, "return": back}, told)
        if told:
            self._cookies.clear(answer, ERROR)
        return answer

    async def _enter(self, request: Request) -> Response:
        if request.method != "POST":
            return await self._refuse(request, FormData(), "", "Method not allowed")
        check_origin(request)
        form = await request.form()
        values = {name: str(form.get(name, "")) for name, _ in _REQUIRED}
        for name, message in _REQUIRED:
            if not values[name]:
                return await self._refuse(request, form, name, message)
        client = f"{self._door.client(request)}\0{values['project']}"
        try:
            self._attempts.attempt(client, "Too many attempts to login")
            signed_in = await self._door.cases.sessions.sign_in(**values)
        except (Unauthenticated, NotFound, Denied, Unavailable) as e:
            return await self._refuse(request, form, _field_of(e), e.message)
        self._attempts.succeeded(client)
        answer = RedirectResponse(safe_return(str(form.get("return", ""))) or "/", 302)
        self._cookies.sign_in(answer, signed_in.token, int(DEFAULT_TTL.total_seconds()))
        self._cookies.remember(request, answer, values["project"])
        return answer

    async def _leave(self, request: Request) -> Response:
        if request.method == "POST":
            check_origin(request)
        answer = RedirectResponse("/", 302)
        self._cookies.clear(answer, SESSION_COOKIE, STATE)
        return answer

    async def _refuse(self, request: Request, form: FormData, field: str, message: str) -> Response:
        """Our own form is shown again; other clients are told as upstream tells them."""
        if "return" in form:
            return await self._page(request, form, message, field)
        answer = RedirectResponse("/", 303)
        self._cookies.tell(answer, message)
        return answer

    async def _page(
        self, request: Request, values: "FormData | dict[str, str]", message: str, field: str = ""
    ) -> Response:
        project = str(values.get("project", ""))
        status = 422 if field or (message and request.method == "POST") else 200
        offer: SignInOptions | None = None
        if project and field != "project":
            try:
                offer = await self._sso.options(project)
            except NotFound as e:
                message, field = message or e.message, "project"
        return self._door.show(
            request,
            "login.html",
            status=status,
            project=project,
            offer=offer,
            others=[name for name in remembered(request) if name != project],
            username=str(values.get("username", "")),
            back=safe_return(str(values.get("return", ""))),
            message=_in_words(message),
            field=field,
        )


def _field_of(error: PipecdError) -> str:
    match error:
        case NotFound():
            return "project"
        case Unauthenticated():
            return "password"
        case _:
            return ""


def _in_words(message: str) -> str:
    """What upstream says in few words, with what to do about it."""
    more = {
        "Missing project id": "Enter the name of your project.",
        "Missing username": "Enter your username.",
        "Missing password": "Enter your password.",
        "Unable to login": "The username or the password is wrong.",
        "Static admin is disabling": "This project does not allow signing in with a password.",
        "Too many attempts to login": "Too many attempts. Wait a minute, then try again.",
        "Method not allowed": "Sign in with the form below.",
        "Invalid SSO configuration: missing SSO configuration in project data": (
            "This project has no single sign-on. Sign in with a password."
        ),
    }
    if message.startswith("Unable to find project"):
        return f"{message}. Check its spelling, or ask whoever runs this control plane."
    return more.get(message, message)


def _again(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}"
