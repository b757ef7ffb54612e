# SPDX-License-Identifier: Apache-2.0
"""The page that creates the first project, for the operator who has the link of the server log."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.setup_token import is_valid_setup_token
from pipecd.controlplane.console.page_context import PageContext, error_text, reject_cross_site
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import Denied, NotFound, UserMistake

PATH = "/setup"
MIN_PASSWORD_LENGTH = 8


class FirstProjectPage:
    """Asks for the project and its administrator; exists until there is a project."""

    def __init__(self, context: PageContext, encryption_key: bytes) -> None:
        self._context, self._encryption_key = context, encryption_key

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self.show, methods=["GET"]),
            Route(PATH, self.create, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        token = request.query_params.get("token", "")
        await self._check(token)
        return self._page(request, token, {"username": "admin"})

    async def create(self, request: Request) -> Response:
        reject_cross_site(request)
        async with request.form() as form:
            fields = {name: str(value) for name, value in form.items()}
        token = fields.get("token", "")
        await self._check(token)
        project, username = (fields.get(name, "").strip() for name in ("project", "username"))
        password = fields.get("password", "")
        if not username:
            return self._page(request, token, fields, "Enter a username.")
        if len(password) < MIN_PASSWORD_LENGTH:
            message = f"The password needs at least {MIN_PASSWORD_LENGTH} characters."
            return self._page(request, token, fields, message)
        admin = StaticAdmin(username, password)
        try:
            await self._context.cases.projects.add_first(project, admin)
        except UserMistake as e:
            return self._page(request, token, fields, error_text(e))
        query = urlencode({"project": project, "created": 1, "username": username})
        return RedirectResponse(f"/login?{query}", 303)

    async def _check(self, token: str) -> None:
        if await self._context.cases.projects.has_any():
            raise NotFound("There is no page at this address.")
        if not is_valid_setup_token(token, self._encryption_key, self._context.now()):
            raise Denied(
                "this link is not valid",
                hint="open the link that the server logged at its last start; it is valid for a "
                "day, and a restart logs a new one",
            )

    def _page(
        self, request: Request, token: str, fields: dict[str, str], message: str = ""
    ) -> Response:
        return self._context.render(
            request,
            "first_project.html",
            status=422 if message else 200,
            token=token,
            project=fields.get("project", ""),
            username=fields.get("username", ""),
            min_password_length=MIN_PASSWORD_LENGTH,
            message=message,
        )
