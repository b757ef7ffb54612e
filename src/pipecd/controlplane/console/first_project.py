# SPDX-License-Identifier: Apache-2.0
"""The page that creates the first project, for the operator who has the link of the server log."""

from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.setup_token import is_signed_setup_token, is_valid_setup_token
from pipecd.controlplane.console.page_context import PageContext, error_text, reject_cross_site
from pipecd.controlplane.usecases.projects import StaticAdmin, check_new_id
from pipecd.model.errors import NotFound, UserMistake

PATH = "/setup"
MIN_PASSWORD_LENGTH = 8


class FieldProblem(NamedTuple):
    """What is wrong with a field of the form; an empty field name means nothing is."""

    field: str = ""
    message: str = ""


_NO_PROBLEM = FieldProblem()


def problem_of(project: str, username: str, password: str) -> FieldProblem:
    """The first field with a value that no project can have."""
    try:
        check_new_id(project)
    except UserMistake as e:
        return FieldProblem("project", error_text(e))
    if not username:
        return FieldProblem("username", "Enter a username.")
    if len(password) < MIN_PASSWORD_LENGTH:
        return FieldProblem(
            "password", f"The password needs at least {MIN_PASSWORD_LENGTH} characters."
        )
    return _NO_PROBLEM


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
        refusal = await self._refusal(request, token)
        return refusal or self._page(request, token, {"username": "admin"})

    async def create(self, request: Request) -> Response:
        reject_cross_site(request)
        async with request.form() as form:
            fields = {name: str(value) for name, value in form.items()}
        token = fields.get("token", "")
        if refusal := await self._refusal(request, token):
            return refusal
        project, username = (fields.get(name, "").strip() for name in ("project", "username"))
        password = fields.get("password", "")
        if (problem := problem_of(project, username, password)).field:
            return self._page(request, token, fields, problem)
        admin = StaticAdmin(username, password)
        try:
            await self._context.cases.projects.add_first(project, admin)
        except UserMistake as e:
            # What is left to refuse is a password that cannot be hashed.
            return self._page(request, token, fields, FieldProblem("password", error_text(e)))
        query = urlencode({"project": project, "created": 1, "username": username})
        return RedirectResponse(f"/login?{query}", 303)

    async def _refusal(self, request: Request, token: str) -> Response | None:
        """The page for somebody whose link is of no use; there is nothing else to go to."""
        if await self._context.cases.projects.has_any():
            raise NotFound("There is no page at this address.")
        if is_valid_setup_token(token, self._encryption_key, self._context.now()):
            return None
        has_expired = is_signed_setup_token(token, self._encryption_key)
        return self._context.render(
            request,
            "error.html",
            status=403,
            code=403,
            link=None,
            title="This link has expired" if has_expired else "This link is not valid",
            text="such a link is valid for a day"
            if has_expired
            else "it is incomplete, or of another installation",
            hint="open the link that the server logged at its last start; a restart logs a new one",
        )

    def _page(
        self,
        request: Request,
        token: str,
        fields: dict[str, str],
        problem: FieldProblem = _NO_PROBLEM,
    ) -> Response:
        return self._context.render(
            request,
            "first_project.html",
            status=422 if problem.field else 200,
            token=token,
            project=fields.get("project", ""),
            username=fields.get("username", ""),
            min_password_length=MIN_PASSWORD_LENGTH,
            problem=problem,
        )
