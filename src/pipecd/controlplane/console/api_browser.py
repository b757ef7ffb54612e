# SPDX-License-Identifier: Apache-2.0
"""The API browser: every endpoint of the REST API with its parameters, to read and to try."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.console.page_context import BrowserSession, PageContext
from pipecd.model.errors import Denied

PATH = "/docs/api"
_SCHEMAS = "#/components/schemas/"
_DEPTH = 3
_READ = Permission(Resource.APPLICATION, Action.LIST)

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A value of a request, in the path or the query string."""

    name: str
    location: str
    type: str


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as the page lists it."""

    id: str
    method: str
    path: str
    summary: str
    parameters: tuple[Parameter, ...]
    body: str
    response: str


@dataclass(frozen=True)
class Group:
    """The endpoints of one kind of object."""

    name: str
    endpoints: tuple[Endpoint, ...]


def endpoint_groups(document: Json) -> tuple[Group, ...]:
    """Returns the endpoints of an OpenAPI document by the first part of their paths."""
    schemas = cast("Json", document.get("components", {}).get("schemas", {}))
    groups: dict[str, list[Endpoint]] = {}
    for path, methods in cast("Json", document.get("paths", {})).items():
        name = path.split("/")[1].replace("-", " ").capitalize()
        for method, operation in cast("Json", methods).items():
            groups.setdefault(name, []).append(_endpoint(method, path, operation, schemas))
    return tuple(Group(name, tuple(endpoints)) for name, endpoints in groups.items())


def _endpoint(method: str, path: str, operation: Json, schemas: Json) -> Endpoint:
    body = operation.get("requestBody")
    response = operation["responses"]["200"]["content"]["application/json"]["schema"]
    return Endpoint(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        parameters=tuple(
            Parameter(each["name"], each["in"], _type_name(each["schema"]))
            for each in operation["parameters"]
        ),
        body=_sample(body["content"]["application/json"]["schema"], schemas) if body else "",
        response=_sample(response, schemas),
    )


def _type_name(schema: Json) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type_name(schema['items'])}"
    return str(schema.get("type", "object"))


def _sample(schema: Json, schemas: Json) -> str:
    return json.dumps(_value(schema, schemas, _DEPTH), indent=2)


def _value(schema: Json, schemas: Json, depth: int) -> Any:
    """Returns a value of the schema's form; objects below `depth` are empty."""
    if ref := schema.get("$ref"):
        return _value(schemas[ref.removeprefix(_SCHEMAS)], schemas, depth)
    match schema.get("type"):
        case "array":
            return [_value(schema["items"], schemas, depth - 1)] if depth > 0 else []
        case "object":
            fields: Json = schema.get("properties", {}) if depth > 0 else {}
            return {name: _value(each, schemas, depth - 1) for name, each in fields.items()}
        case "boolean":
            return False
        case "integer" | "number":
            return 0
        case _:
            return schema["enum"][0] if schema.get("enum") else ""


class ApiBrowserPage:
    """Route and handler of the API browser."""

    def __init__(self, context: PageContext, document: Json) -> None:
        self._context, self._groups = context, endpoint_groups(document)

    def routes(self) -> list[Route]:
        return [Route(PATH, self._context.page(self.show_page), methods=["GET"])]

    async def show_page(self, request: Request, session: BrowserSession) -> Response:
        if reason := await self._context.denied_reason(session.user, _READ):
            raise Denied(reason)
        return self._context.render(
            request,
            "api_browser.html",
            groups=self._groups,
            address=self._context.public_url(request),
        )
