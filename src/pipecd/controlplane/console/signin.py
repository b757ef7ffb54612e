# SPDX-License-Identifier: Apache-2.0
"""Signing in and out."""

from datetime import timedelta

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.console.door import (
    SESSION,
    Door,
    check_origin,
    needs_bounce,
    safe_return,
)
from pipecd.model.errors import Denied, NotFound, PipecdError, Unauthenticated, Unavailable

ATTEMPTS_PER_MINUTE = 10
_SESSION_SECONDS = int(timedelta(days=7).total_seconds())
_ERROR_SECONDS = 600
_REQUIRED = (
    ("project", "Missing project id"),
    ("username", "Missing username"),
    ("password", "Missing password"),
)


class SignIn:
    """The form of the static administrator, its endpoint, and the way out."""

    def __init__(self, door: Door) -> None:
        self._door = door
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
        back = safe_return(request.query_params.get("return", ""))
        try:
            self._door.visitor(request)
        except Unauthenticated:
            if needs_bounce(request):
                return self._door.show(request, "bounce.html", to=_again(request))
            told = request.cookies.get("error", "").strip('"')
            project = request.query_params.get("project", "")
            answer = self._page(request, {"project": project, "return": back}, told)
            if told:
                answer.headers.append("Set-Cookie", self._cookie("error", "", 0))
            return answer
        return RedirectResponse(back or "/applications", 302)

    async def _enter(self, request: Request) -> Response:
        if request.method != "POST":
            return self._refuse(request, FormData(), "", "Method not allowed")
        check_origin(request)
        form = await request.form()
        values = {name: str(form.get(name, "")) for name, _ in _REQUIRED}
        for name, message in _REQUIRED:
            if not values[name]:
                return self._refuse(request, form, name, message)
        client = f"{request.client.host if request.client else ''}\0{values['project']}"
        try:
            self._attempts.attempt(client, "Too many attempts to login")
            signed_in = await self._door.cases.sessions.sign_in(**values)
        except (Unauthenticated, NotFound, Denied, Unavailable) as e:
            return self._refuse(request, form, _field_of(e), e.message)
        self._attempts.succeeded(client)
        answer = RedirectResponse(safe_return(str(form.get("return", ""))) or "/", 302)
        session = self._cookie(SESSION, signed_in.token, _SESSION_SECONDS, readable=False)
        answer.headers.append("Set-Cookie", session)
        return answer

    async def _leave(self, request: Request) -> Response:
        if request.method == "POST":
            check_origin(request)
        answer = RedirectResponse("/", 302)
        for name in (SESSION, "state"):
            answer.headers.append("Set-Cookie", self._cookie(name, "", 0, readable=False))
        return answer

    def _refuse(self, request: Request, form: FormData, field: str, message: str) -> Response:
        """Our own form is shown again; other clients are told as upstream tells them."""
        if "return" in form:
            return self._page(request, form, message, field)
        answer = RedirectResponse("/", 303)
        answer.headers.append("Set-Cookie", self._cookie("error", message, _ERROR_SECONDS))
        return answer

    def _page(
        self, request: Request, values: "FormData | dict[str, str]", message: str, field: str = ""
    ) -> Response:
        return self._door.show(
            request,
            "login.html",
            status=422 if field or (message and request.method == "POST") else 200,
            project=str(values.get("project", "")),
            username=str(values.get("username", "")),
            back=safe_return(str(values.get("return", ""))),
            message=_in_words(message),
            field=field,
        )

    def _cookie(self, name: str, value: str, seconds: int, *, readable: bool = True) -> str:
        """A cookie of this host; only the `error` cookie is for scripts to read."""
        kept = "".join(c for c in value if " " <= c <= "~" and c not in '";\\')
        quoted = f'"{kept}"' if " " in kept or "," in kept else kept
        parts = [f"{name}={quoted}", "Path=/", f"Max-Age={seconds}", "SameSite=Strict"]
        parts += [] if readable else ["HttpOnly"]
        parts += ["Secure"] if self._door.secure else []
        return "; ".join(parts)


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
    }
    if message.startswith("Unable to find project"):
        return f"{message}. Check its spelling, or ask whoever runs this control plane."
    return more.get(message, message)


def _again(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}"
