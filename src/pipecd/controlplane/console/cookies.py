# SPDX-License-Identifier: Apache-2.0
"""The cookies of signing in: the session, the state of a sign-in under way, errors, projects."""

from typing import Literal, TypeAlias
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from pipecd.wire.credentials import SESSION_COOKIE

Site: TypeAlias = Literal["Strict", "Lax"]

STATE = "state"
ERROR = "error"
RETURN = "return"
PROJECTS = "projects"
_ERROR_SECONDS = 600
_YEAR_SECONDS = 365 * 24 * 3600
_MOST_PROJECTS = 10


class Cookies:
    """Sets and clears cookies of this host; `secure` ones travel over TLS only."""

    def __init__(self, *, secure: bool) -> None:
        self._secure = secure

    def put(
        self,
        answer: Response,
        name: str,
        value: str,
        seconds: int,
        *,
        site: Site = "Strict",
    ) -> None:
        """A lax cookie also comes along when another site leads here, as providers do."""
        kept = "".join(c for c in value if " " <= c <= "~" and c not in '";\\')
        quoted = f'"{kept}"' if " " in kept or "," in kept else kept
        parts = [f"{name}={quoted}", "Path=/", f"Max-Age={seconds}", f"SameSite={site}"]
        # Only errors are for scripts to read, as upstream's console does.
        parts += [] if name == ERROR else ["HttpOnly"]
        parts += ["Secure"] if self._secure else []
        answer.headers.append("Set-Cookie", "; ".join(parts))

    def clear(self, answer: Response, *names: str) -> None:
        for name in names:
            self.put(answer, name, "", 0)

    def tell(self, answer: Response, message: str, *, site: Site = "Strict") -> None:
        """Leaves an error for the next page."""
        self.put(answer, ERROR, message, _ERROR_SECONDS, site=site)

    def sign_in(
        self,
        answer: Response,
        token: str,
        seconds: int,
        *,
        site: Site = "Strict",
    ) -> None:
        self.put(answer, SESSION_COOKIE, token, seconds, site=site)

    def remember(self, request: Request, answer: Response, project: str) -> None:
        """Keeps the project for the next choice in this browser, the latest one first."""
        names = [project, *(name for name in remembered(request) if name != project)]
        value = "+".join(quote(name, safe="") for name in names[:_MOST_PROJECTS])
        self.put(answer, PROJECTS, value, _YEAR_SECONDS, site="Lax")


def remembered(request: Request) -> list[str]:
    """The projects that were signed in to from this browser."""
    names = request.cookies.get(PROJECTS, "").split("+")
    return [unquote(name) for name in names[:_MOST_PROJECTS] if name]
