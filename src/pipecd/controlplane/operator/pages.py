# SPDX-License-Identifier: Apache-2.0
"""The operator pages: list projects, add a project, reset the password of its administrator."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pipecd.controlplane.operator.protection import CrossSiteProtection
from pipecd.controlplane.usecases.projects import ProjectUseCases
from pipecd.model.clock import from_unix
from pipecd.model.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    PipecdError,
    Unavailable,
    UserMistake,
)

_TEMPLATES = Path(__file__).parent / "templates"
TIMEOUT_SECONDS = 10.0
_STATUS: dict[type[PipecdError], int] = {
    UserMistake: 400,
    NotFound: 404,
    AlreadyExists: 409,
    Conflict: 409,
    Unavailable: 503,
}
_TITLES = {404: "Not found", 409: "Not possible", 503: "Temporarily unavailable"}

Endpoint = Callable[[Request], Awaitable[Response]]


def create_operator_pages(projects: ProjectUseCases, *, shared_sso: Collection[str]) -> ASGIApp:
    """The pages with their protection; `shared_sso` has the names of the shared SSO configs."""
    return CrossSiteProtection(OperatorPages(projects, shared_sso))


class OperatorPages:
    """The pages without their protection."""

    def __init__(self, projects: ProjectUseCases, shared_sso: Collection[str]) -> None:
        self._projects, self._shared_sso = projects, shared_sso
        self._templates = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._style = (_TEMPLATES / "style.css").read_bytes()
        self._endpoints: dict[tuple[str, str], Endpoint] = {
            ("GET", "/style.css"): self._send_style,
            ("GET", "/"): self._list,
            ("GET", "/projects"): self._list,
            ("GET", "/projects/add"): self._add_form,
            ("POST", "/projects/add"): self._add,
            ("GET", "/projects/reset-password"): self._reset_form,
            ("POST", "/projects/reset-password"): self._reset,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = self._endpoints.get((method, request.url.path))
        if endpoint is None:
            if method != "GET":
                return PlainTextResponse("not found", 404)
            return self._page("home.html")
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await endpoint(request)
        except PipecdError as e:
            status = next((code for kind, code in _STATUS.items() if isinstance(e, kind)), 500)
            return self._error(status, e.message, e.hint)
        except TimeoutError:
            return self._error(503, "the stores did not respond in time")

    def _error(self, status: int, text: str, hint: str = "") -> Response:
        title = _TITLES.get(status, "The request failed")
        return self._page("error.html", status, title=title, text=text, hint=hint)

    async def _send_style(self, _request: Request) -> Response:
        return Response(self._style, media_type="text/css")

    async def _list(self, _request: Request) -> Response:
        rows = [
            {
                "id": project.id,
                "description": project.desc,
                "admin_disabled": project.static_admin_disabled,
                "shared_sso": project.shared_sso_name,
                "created_at": from_unix(project.created_at).strftime("%Y-%m-%d %H:%M:%S UTC"),
            }
            for project in await self._projects.list()
        ]
        return self._page("projects.html", projects=rows)

    async def _add_form(self, _request: Request) -> Response:
        return self._page("add.html", shared_sso=sorted(self._shared_sso))

    async def _add(self, request: Request) -> Response:
        form = await _form_fields(request)
        id, shared_sso = form.get("ID", "").strip(), form.get("SharedSSO", "").strip()
        if not id:
            raise UserMistake("invalid id", hint="a project needs an ID")
        if shared_sso and shared_sso not in self._shared_sso:
            raise UserMistake(
                f'SharedSSOConfig "{shared_sso}" was not found in Control Plane configuration'
            )
        try:
            admin = await self._projects.add(
                id,
                form.get("Description", ""),
                shared_sso=shared_sso,
                allow_stray_as_viewer="AllowStrayAsViewer" in form,
            )
        except PipecdError as e:
            raise type(e)(f"Unable to add the project ({e.message})", hint=e.hint) from e
        return self._page("admin.html", title="The project was added", id=id, admin=admin)

    async def _reset_form(self, request: Request) -> Response:
        id = request.query_params.get("ID", "")
        await self._check_exists(id)
        return self._page("reset.html", id=id, error="")

    async def _reset(self, request: Request) -> Response:
        form = await _form_fields(request)
        id = form.get("ID", "")
        await self._check_exists(id)
        if form.get("confirmationID", "") != id:
            error = "The ID does not match the project."
            return self._page("reset.html", 400, id=id, error=error)
        admin = await self._projects.reset_admin(id)
        return self._page("admin.html", title="The password was reset", id=id, admin=admin)

    async def _check_exists(self, id: str) -> None:
        if not id:
            raise UserMistake("invalid id", hint="choose a project in the list")
        if id not in {project.id for project in await self._projects.list()}:
            raise NotFound(f"project {id} is not found", hint="choose a project in the list")

    def _page(self, template: str, status: int = 200, **context: Any) -> Response:
        html = self._templates.get_template(template).render(**context)
        return HTMLResponse(html, status)


async def _form_fields(request: Request) -> dict[str, str]:
    """The text fields of a form; uploaded files are ignored."""
    async with request.form() as form:
        return {name: value for name, value in form.items() if isinstance(value, str)}
