# SPDX-License-Identifier: Apache-2.0
"""Signing in through another site: the form that leads there and the address to come back to."""

from urllib.parse import urlencode

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.console.cookies import RETURN, STATE, Cookies, Site
from pipecd.controlplane.console.page_context import Door, check_origin, safe_return
from pipecd.controlplane.usecases.sso import AuthCallback, SingleSignOn
from pipecd.model.errors import PipecdError

# More than for passwords, as nothing can be guessed here and many people share an address.
_TRIPS_PER_MINUTE = 60
_STATE_SECONDS = 1800


class SsoSignIn:
    """The two endpoints of a sign-in with GitHub or OpenID Connect."""

    def __init__(self, door: Door, sso: SingleSignOn) -> None:
        self._door, self._sso = door, sso
        self._cookies = Cookies(secure=door.secure)
        self._trips = Throttle(_TRIPS_PER_MINUTE, now=door.now)

    def routes(self) -> list[Route]:
        return [
            Route("/auth/login", self._leave, methods=["GET", "POST"]),
            Route("/auth/callback", self._return, methods=["GET"]),
        ]

    async def _leave(self, request: Request) -> Response:
        if request.method != "POST":
            return self._refuse("Method not allowed")
        check_origin(request)
        form = await request.form()
        project = str(form.get("project", ""))
        if not project:
            return self._refuse("Missing project id", form)
        try:
            self._trips.attempt(
                f"{self._door.client(request)}\0{project}", "Too many attempts to login"
            )
            redirect = await self._sso.begin(project)
        except PipecdError as e:
            return self._refuse(e.message, form)
        answer: Response = RedirectResponse(redirect.url, 302)
        if "return" in form:
            # Our pages let forms go to this host only, and browsers hold redirects to that as well.
            answer = self._door.show(request, "bounce.html", to=redirect.url)
        self._cookies.put(answer, STATE, redirect.state, _STATE_SECONDS, site="Lax")
        back = safe_return(str(form.get("return", "")))
        self._cookies.put(answer, RETURN, back, _STATE_SECONDS if back else 0, site="Lax")
        return answer

    async def _return(self, request: Request) -> Response:
        query, kept = request.query_params, request.cookies
        callback = AuthCallback(
            state=query.get("state", ""),
            project=query.get("project", ""),
            code=query.get("code", ""),
            error=query.get("error", ""),
            cookie=kept.get(STATE, ""),
        )
        try:
            result = await self._sso.finish(callback)
        except PipecdError as e:
            answer = self._refuse(e.message, site="Lax")
            self._cookies.clear(answer, STATE)
            return answer
        answer = RedirectResponse(safe_return(kept.get(RETURN, "")) or "/", 302)
        seconds = int(result.ttl.total_seconds())
        # A strict cookie would stay behind on the way that another site began.
        self._cookies.sign_in(answer, result.token, seconds, site="Lax")
        self._cookies.clear(answer, STATE, RETURN)
        self._cookies.remember(request, answer, result.person.project)
        return answer

    def _refuse(
        self, message: str, form: FormData | None = None, *, site: Site = "Strict"
    ) -> Response:
        """Our own form is shown again; other clients are told as upstream tells them."""
        to = "/"
        if form is not None and "return" in form:
            again = {name: str(form.get(name, "")) for name in ("project", "return")}
            to = f"/login?{urlencode(again)}"
        answer = RedirectResponse(to, 303)
        self._cookies.tell(answer, message, site=site)
        return answer
