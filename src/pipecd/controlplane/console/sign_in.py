# SPDX-License-Identifier: Apache-2.0
"""Signing in and out: the sign-in page, passwords of static admins, single sign-on, cookies."""

from contextlib import suppress
from typing import Literal, TypeAlias
from urllib.parse import quote, unquote, urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.request_origin import lockout_source
from pipecd.controlplane.auth.sessions import DEFAULT_TTL
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.console.page_context import (
    PageContext,
    needs_same_site_redirect,
    path_and_query,
    reject_cross_site,
    safe_return,
)
from pipecd.controlplane.usecases.sessions import ATTEMPTS_PER_MINUTE
from pipecd.controlplane.usecases.sso import (
    NO_USER,
    AuthCallback,
    SignInOptions,
    SingleSignOn,
)
from pipecd.model.errors import (
    Denied,
    PipecdError,
    StorageUnavailable,
    Unauthenticated,
    Unavailable,
)
from pipecd.secrets.state import MAX_AGE
from pipecd.wire.credentials import SESSION_COOKIE

SameSite: TypeAlias = Literal["Strict", "Lax"]

STATE_COOKIE = "state"
ERROR_COOKIE = "error"
RETURN_COOKIE = "return"
TRIAL_COOKIE = "sso_trial"
PROJECTS_COOKIE = "projects"
_ERROR_SECONDS = 600
STATE_SECONDS = int(MAX_AGE.total_seconds())
_YEAR_SECONDS = 365 * 24 * 3600
_MAX_RECENT_PROJECTS = 10
# More than for passwords: there is nothing to guess, and many users share one address.
_SSO_ATTEMPTS_PER_MINUTE = 60
_REQUIRED = (
    ("project", "Missing project id"),
    ("username", "Missing username"),
    ("password", "Missing password"),
)
# Upstream's messages, which clients read from the error cookie, as our page words them.
_PAGE_MESSAGES = {
    "Missing project id": "Enter the name of your project.",
    "Missing username": "Enter your username.",
    "Missing password": "Enter your password.",
    "Unable to login": "The project, the username or the password is wrong.",
    "Static admin is disabling": "This project does not allow signing in with a password.",
    "Too many attempts to login": "Too many attempts. Wait a minute, then try again.",
    "Unauthorized access": (
        "This sign-in did not begin in this browser, took too long, or the single sign-on of the "
        "project has changed since. Sign in again."
    ),
    "Method not allowed": "Sign in with the form below.",
    "Invalid SSO configuration: missing SSO configuration in project data": (
        "There is no single sign-on for this project. Sign in with a password."
    ),
}


# What the page says when a session has ended, by what the user wanted.
_EXPIRED = {
    "page": "Your session has ended. Sign in to go on where you were.",
    "form": "Your session had ended, so nothing was changed. Sign in and submit the form again.",
}


class SignInPages:
    """The sign-in page, the endpoints of both ways to sign in, and signing out.

    The endpoints below `/auth` are upstream's. Clients other than our own form, which sends a
    `return` field, get errors as upstream's console does: in a cookie and a redirect to `/`.
    """

    def __init__(self, context: PageContext, sso: SingleSignOn) -> None:
        self._context, self._sso = context, sso
        self._cookies = Cookies(secure=context.secure)
        self._password_attempts = Throttle(ATTEMPTS_PER_MINUTE, now=context.now)
        self._sso_attempts = Throttle(_SSO_ATTEMPTS_PER_MINUTE, now=context.now)

    def routes(self) -> list[Route]:
        return [
            Route("/", self.sign_in_page, methods=["GET"]),
            Route("/login", self.sign_in_page, methods=["GET"]),
            Route("/auth/login/static", self.sign_in_with_password, methods=["GET", "POST"]),
            Route("/auth/login", self.start_sso, methods=["GET", "POST"]),
            Route("/auth/callback", self.sso_callback, methods=["GET"]),
            Route("/auth/logout", self.sign_out, methods=["GET", "POST"]),
        ]

    async def sign_in_page(self, request: Request) -> Response:
        query = request.query_params
        return_path = safe_return(query.get("return", ""))
        project = query.get("project", "")
        # Who does not know the only project gets no hint: the browser remembers, not the server.
        remembered = recent_projects(request)
        suggested = remembered[0] if len(remembered) == 1 and "switch" not in query else ""
        try:
            session = await self._context.authenticate(request)
        except Unauthenticated:
            if needs_same_site_redirect(request):
                return self._context.render(
                    request, "redirect.html", target=path_and_query(request)
                )
        else:
            switches = "switch" in query or project not in ("", session.user.project)
            if request.url.path == "/" or not switches:
                return RedirectResponse(return_path or "/overview", 302)
        message = request.cookies.get(ERROR_COOKIE, "").strip('"')
        values = {
            "project": project or suggested,
            "return": return_path,
            "expired": query.get("expired", ""),
            "created": query.get("created", ""),
            # Who has just chosen it need not type it again.
            "username": query.get("username", "") if "created" in query else "",
        }
        response = await self._form(request, values, message)
        if message:
            self._cookies.clear(response, ERROR_COOKIE)
        return response

    async def sign_in_with_password(self, request: Request) -> Response:
        if request.method != "POST":
            return await self._reject_password(request, FormData(), "", "Method not allowed")
        reject_cross_site(request)
        form = await request.form()
        values = {name: str(form.get(name, "")) for name, _ in _REQUIRED}
        for name, message in _REQUIRED:
            if not values[name]:
                return await self._reject_password(request, form, name, message)
        client = f"{lockout_source(self._context.client_address(request))}\0{values['project']}"
        try:
            self._password_attempts.attempt(client, "Too many attempts to login")
            source = lockout_source(self._context.client_address(request))
            signed_in = await self._context.cases.sessions.sign_in(**values, source=source)
        except Unauthenticated as e:
            return await self._reject_password(request, form, "password", e.message)
        except (Denied, Unavailable) as e:
            return await self._reject_password(request, form, "", e.message)
        self._password_attempts.succeeded(client)
        response = RedirectResponse(safe_return(str(form.get("return", ""))) or "/", 302)
        seconds = int(DEFAULT_TTL.total_seconds())
        self._cookies.set(response, SESSION_COOKIE, signed_in.token, seconds)
        self._cookies.add_recent_project(request, response, values["project"])
        return response

    async def sign_out(self, request: Request) -> Response:
        """Ends the session in every replica; a copy of its cookie is worthless from then on."""
        reject_cross_site(request)
        await self._context.cases.sessions.end(request.cookies.get(SESSION_COOKIE, ""))
        response = RedirectResponse("/", 302)
        self._cookies.clear(response, SESSION_COOKIE, STATE_COOKIE)
        return response

    async def start_sso(self, request: Request) -> Response:
        if request.method != "POST":
            return self._reject_sso("Method not allowed")
        reject_cross_site(request)
        form = await request.form()
        project = str(form.get("project", ""))
        if not project:
            return self._reject_sso("Missing project id", form)
        try:
            client = f"{lockout_source(self._context.client_address(request))}\0{project}"
            self._sso_attempts.attempt(client, "Too many attempts to login")
            redirect = await self._sso.begin(project)
        except PipecdError as e:
            return self._reject_sso(e.message, form)
        response: Response = RedirectResponse(redirect.url, 302)
        if "return" in form:
            # The policy `form-action 'self'` of our pages applies to redirects of a form as well.
            response = self._context.render(request, "redirect.html", target=redirect.url)
        self._cookies.set(response, STATE_COOKIE, redirect.cookie, STATE_SECONDS, same_site="Lax")
        return_path = safe_return(str(form.get("return", "")))
        seconds = STATE_SECONDS if return_path else 0
        self._cookies.set(response, RETURN_COOKIE, return_path, seconds, same_site="Lax")
        return response

    async def sso_callback(self, request: Request) -> Response:
        query, cookies = request.query_params, request.cookies
        callback = AuthCallback(
            state=query.get("state", ""),
            project=query.get("project", ""),
            code=query.get("code", ""),
            issuer=query.get("iss", ""),
            error=query.get("error", ""),
            cookie=cookies.get(STATE_COOKIE, ""),
        )
        if trial := cookies.get(TRIAL_COOKIE, ""):
            response = await self._finish_trial(request, callback, trial)
            if response is not None:
                return response
        try:
            result = await self._sso.finish(callback)
        except PipecdError as e:
            response = self._reject_sso(e.message, same_site="Lax")
            self._cookies.clear(response, STATE_COOKIE)
            return response
        response = RedirectResponse(safe_return(cookies.get(RETURN_COOKIE, "")) or "/", 302)
        seconds = int(result.ttl.total_seconds())
        # Browsers do not send a strict cookie after a redirect chain that another site began.
        self._cookies.set(response, SESSION_COOKIE, result.token, seconds, same_site="Lax")
        self._cookies.clear(response, STATE_COOKIE, RETURN_COOKIE)
        self._cookies.add_recent_project(request, response, result.user.project)
        return response

    async def _finish_trial(
        self, request: Request, callback: AuthCallback, trial: str
    ) -> Response | None:
        """The result of settings that are tried before they are saved; None if this is no trial.

        Whoever is signed in stays so: nothing but the two cookies of the trial changes.
        """
        identity, reason, hint = None, "", ""
        try:
            identity = await self._sso.finish_trial(callback, trial)
        except StorageUnavailable:
            raise
        except PipecdError as e:
            # Whoever tries settings is the administrator whom other users are sent to.
            reason = e.message.removeprefix(NO_USER).partition(", ask an administrator")[0]
            hint = e.hint
        if identity is None and not reason:
            return None
        response = self._context.render(
            request, "sso_trial.html", identity=identity, reason=reason, hint=hint
        )
        self._cookies.clear(response, STATE_COOKIE, TRIAL_COOKIE)
        return response

    async def _reject_password(
        self, request: Request, form: FormData, field: str, message: str
    ) -> Response:
        if "return" in form:
            return await self._form(request, form, message, field)
        response = RedirectResponse("/", 303)
        self._cookies.set(response, ERROR_COOKIE, message, _ERROR_SECONDS)
        return response

    def _reject_sso(
        self, message: str, form: FormData | None = None, *, same_site: SameSite = "Strict"
    ) -> Response:
        target = "/"
        if form is not None and "return" in form:
            values = {name: str(form.get(name, "")) for name in ("project", "return")}
            target = f"/login?{urlencode(values)}"
        response = RedirectResponse(target, 303)
        self._cookies.set(response, ERROR_COOKIE, message, _ERROR_SECONDS, same_site=same_site)
        return response

    async def _form(
        self, request: Request, values: "FormData | dict[str, str]", message: str, field: str = ""
    ) -> Response:
        project = str(values.get("project", ""))
        status = 422 if field or (message and request.method == "POST") else 200
        has_projects = True
        if not project and not message:
            # The page is shown while the datastore is unavailable, too.
            with suppress(Unavailable):
                has_projects = await self._context.cases.projects.has_any()
        options: SignInOptions | None = None
        if project and field != "project":
            options = await self._sso.options(project)
        return self._context.render(
            request,
            "sign_in.html",
            status=status,
            project=project,
            options=options,
            recent_projects=[name for name in recent_projects(request) if name != project],
            username=str(values.get("username", "")),
            return_path=safe_return(str(values.get("return", ""))),
            message=_PAGE_MESSAGES.get(message, message),
            field=field,
            expired=_EXPIRED.get(str(values.get("expired", "")), ""),
            is_created=bool(project and values.get("created")),
            has_projects=has_projects,
        )


class Cookies:
    """Sets and clears the cookies of signing in; `secure` ones are sent over TLS only."""

    def __init__(self, *, secure: bool) -> None:
        self._secure = secure

    def set(
        self,
        response: Response,
        name: str,
        value: str,
        seconds: int,
        *,
        same_site: SameSite = "Strict",
    ) -> None:
        """Sets a cookie; browsers also send a lax one after links and redirects of other sites."""
        allowed = "".join(c for c in value if " " <= c <= "~" and c not in '";\\')
        quoted = f'"{allowed}"' if " " in allowed or "," in allowed else allowed
        parts = [f"{name}={quoted}", "Path=/", f"Max-Age={seconds}", f"SameSite={same_site}"]
        # Scripts may read errors only, as in upstream's console.
        parts += [] if name == ERROR_COOKIE else ["HttpOnly"]
        parts += ["Secure"] if self._secure else []
        response.headers.append("Set-Cookie", "; ".join(parts))

    def clear(self, response: Response, *names: str) -> None:
        for name in names:
            self.set(response, name, "", 0)

    def add_recent_project(self, request: Request, response: Response, project: str) -> None:
        """Puts the project first among those that the sign-in page offers in this browser."""
        names = [project, *(name for name in recent_projects(request) if name != project)]
        value = "+".join(quote(name, safe="") for name in names[:_MAX_RECENT_PROJECTS])
        self.set(response, PROJECTS_COOKIE, value, _YEAR_SECONDS, same_site="Lax")


def recent_projects(request: Request) -> list[str]:
    """The projects that users of this browser signed in to, the latest one first."""
    names = request.cookies.get(PROJECTS_COOKIE, "").split("+")
    return [unquote(name) for name in names[:_MAX_RECENT_PROJECTS] if name]
