# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, generated from the descriptors that requests are parsed with."""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pipecd.controlplane.api.rest.routes import ROUTES, RestRoute
from pipecd.observe.version import build_version
from pipecd.wire.validation import is_map, is_required

_SCALARS: dict[int, dict[str, str]] = {
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer"},
    # JSON numbers lose precision beyond 53 bits, so protobuf renders 64-bit integers as strings.
    FieldDescriptor.CPPTYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "string", "format": "uint64"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
}
_ERROR = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
}


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of all routes."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "PipeCD", "version": build_version()},
        "servers": [{"url": "/api/v1"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    }


def _operation(route: RestRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    request = route.descriptor.input_type
    in_path = [_parameter(request, name, "path", schemas) for name in route.path_fields]
    others = [f.name for f in request.fields if f.name not in route.path_fields]
    operation: dict[str, Any] = {
        "operationId": route.rpc,
        "summary": route.summary,
        "parameters": in_path,
        "responses": {
            "200": {
                "description": "OK.",
                "content": _json(_reference(route.descriptor.output_type, schemas)),
            },
            "default": {
                "description": "An error, with the gRPC status code and a message.",
                "content": _json({"$ref": "#/components/schemas/Error"}),
            },
        },
    }
    if route.has_body and others:
        schema = _object(request, others, schemas)
        required = [name for name in others if is_required(request.fields_by_name[name])]
        # Only of requests: the messages within them are also parts of answers, which omit fields.
        schema |= {"required": required} if required else {}
        operation["requestBody"] = {"required": bool(required), "content": _json(schema)}
    else:
        operation["parameters"] += [_parameter(request, name, "query", schemas) for name in others]
    return operation


def _parameter(
    message: Descriptor, name: str, location: str, schemas: dict[str, Any]
) -> dict[str, Any]:
    field: Any = message.fields_by_name[name]
    schema = _field(field, schemas)
    if is_map(field):
        # In a query string a map is a list of key:value pairs.
        schema = {"type": "array", "items": {"type": "string", "pattern": "^[^:]*:.*$"}}
    required = location == "path" or is_required(field)
    return {"name": name, "in": location, "required": required, "schema": schema}


def _reference(message: Descriptor, schemas: dict[str, Any]) -> dict[str, str]:
    name = message.full_name
    if name not in schemas:
        # The placeholder ends the recursion of a message that contains itself.
        schemas[name] = {}
        schemas[name] = _object(message, [field.name for field in message.fields], schemas)
    return {"$ref": f"#/components/schemas/{name}"}


def _object(message: Descriptor, names: list[str], schemas: dict[str, Any]) -> dict[str, Any]:
    properties = {name: _field(message.fields_by_name[name], schemas) for name in names}
    return {"type": "object", "properties": properties}


def _field(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": _value(value, schemas)}
    if field.is_repeated:
        return {"type": "array", "items": _value(field, schemas)}
    return _value(field, schemas)


def _value(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        return _reference(field.message_type, schemas)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return {"type": "string", "contentEncoding": "base64"}
    return dict(_SCALARS[field.cpp_type])


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
