# SPDX-License-Identifier: Apache-2.0
"""The forms about pipeds: adding one, steering it, and its keys."""

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.once import Once
from pipecd.controlplane.console.page_context import Door, Endpoint, Visitor
from pipecd.controlplane.console.project_settings_view import Problem
from pipecd.model.errors import Conflict, UserMistake

PAGE = "/settings/piped"
_VERSION = re.compile(r"v[A-Za-z0-9._+-]{1,127}")
_PORTS = {"http": 80, "https": 443}

Act = Callable[[Request, Visitor], Awaitable[Response]]
Deed = Callable[[str, FormData, User], Awaitable[None]]
Shown = Callable[[Request, Visitor, Problem], Awaitable[Response]]


class PipedForms:
    """Changes pipeds; a form that cannot be taken is shown again."""

    def __init__(self, door: Door, once: Once, shown: Shown) -> None:
        self._door, self._once, self._shown = door, once, shown

    def routes(self) -> list[Route]:
        acts: dict[str, Act] = {
            "restart": self._restart,
            "keys": self._add_key,
            "edit": self._done(self._edit),
            "version": self._done(self._desire_version),
            "enable": self._done(self._enable),
            "disable": self._done(self._disable),
            "keys/drop": self._done(self._drop_old_keys),
        }
        return [
            Route(PAGE, self._taken("add", self._register), methods=["POST"]),
            *(
                Route(f"{PAGE}/{{id}}/{name}", self._taken(name, act), methods=["POST"])
                for name, act in acts.items()
            ),
        ]

    def _taken(self, name: str, act: Act) -> Endpoint:
        async def attempt(request: Request, visitor: Visitor) -> Response:
            try:
                return await act(request, visitor)
            except (UserMistake, Conflict) as e:
                form = await request.form()
                typed = {key: str(value) for key, value in form.items() if key != "csrf"}
                return await self._shown(request, visitor, Problem(name, e.message, typed))

        return self._door.action(attempt)

    def _done(self, deed: Deed) -> Act:
        """Carries it out and leads back to the piped."""

        async def act(request: Request, visitor: Visitor) -> Response:
            id = request.path_params["id"]
            await deed(id, await request.form(), visitor.person)
            return RedirectResponse(f"{PAGE}/{id}", 303)

        return act

    async def _restart(self, request: Request, visitor: Visitor) -> Response:
        id = request.path_params["id"]
        command = await self._once.do(
            (visitor.token, request.url.path),
            lambda: self._door.cases.pipeds.restart(id, by=visitor.person),
        )
        return RedirectResponse(f"{PAGE}/{id}?cmd={command}", 303)

    async def _register(self, request: Request, visitor: Visitor) -> Response:
        form = await request.form()
        name, description = _name(form), _text(form, "description")

        async def deed() -> str:
            made = await self._door.cases.pipeds.register(name, description, by=visitor.person)
            return f"{made.id} {made.key}"

        made = await self._once.do((visitor.token, PAGE, name), deed)
        id, _, key = made.partition(" ")
        return await self._show_key(request, visitor, id, key)

    async def _add_key(self, request: Request, visitor: Visitor) -> Response:
        id = request.path_params["id"]
        # A second click would find two keys there, and the answer to the first one is gone.
        key = await self._once.do(
            (visitor.token, request.url.path),
            lambda: self._door.cases.pipeds.add_key(id, by=visitor.person),
        )
        return await self._show_key(request, visitor, id, key)

    async def _show_key(self, request: Request, visitor: Visitor, id: str, key: str) -> Response:
        """The one answer that has the key in it; it is in no address, so nothing brings it back."""
        address = self._door.cases.address or str(request.base_url)
        return self._door.show(
            request,
            "settings_piped_key.html",
            id=id,
            key=key,
            encoded=b64encode(key.encode()).decode(),
            project=visitor.person.project,
            api_address=_api_address(address),
            is_insecure=address.startswith("http://"),
            is_new="id" not in request.path_params,
        )

    async def _edit(self, id: str, form: FormData, person: User) -> None:
        await self._door.cases.pipeds.update(id, _name(form), _text(form, "description"), by=person)

    async def _desire_version(self, id: str, form: FormData, person: User) -> None:
        version = _text(form, "version")
        if version and not _VERSION.fullmatch(version):
            raise UserMistake(f"{version!r} is not a version; write it like v0.1.0.")
        await self._door.cases.pipeds.desire_version(version, [id], by=person)

    async def _enable(self, id: str, _form: FormData, person: User) -> None:
        await self._door.cases.pipeds.enable(id, by=person)

    async def _disable(self, id: str, _form: FormData, person: User) -> None:
        await self._door.cases.pipeds.disable(id, by=person)

    async def _drop_old_keys(self, id: str, _form: FormData, person: User) -> None:
        await self._door.cases.pipeds.drop_old_keys(id, by=person)


def _text(form: FormData, name: str) -> str:
    return str(form.get(name, "")).strip()


def _name(form: FormData) -> str:
    name = _text(form, "name")
    if not name:
        raise UserMistake("Fill in the name.")
    return name


def _api_address(web: str) -> str:
    """Where a piped finds a control plane that people find at this address."""
    parts = urlsplit(web)
    return parts.netloc if parts.port else f"{parts.netloc}:{_PORTS.get(parts.scheme, 443)}"
