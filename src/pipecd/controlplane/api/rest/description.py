# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made of the same descriptors that requests are read with."""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pipecd.controlplane.api.rest.addresses import ADDRESSES, Address
from pipecd.observe.version import build_version
from pipecd.wire.validation import is_map

_SCALARS: dict[int, dict[str, str]] = {
    FieldDescriptor.CPPTYPE_STRING: {"type": "string"},
    FieldDescriptor.CPPTYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.CPPTYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.CPPTYPE_UINT32: {"type": "integer"},
    # As JSON has no numbers of that size, they travel as texts.
    FieldDescriptor.CPPTYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.CPPTYPE_UINT64: {"type": "string", "format": "uint64"},
    FieldDescriptor.CPPTYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.CPPTYPE_FLOAT: {"type": "number"},
}
_REFUSAL = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
}


def openapi() -> dict[str, Any]:
    """The whole document."""
    schemas: dict[str, Any] = {"Refusal": _REFUSAL}
    paths: dict[str, Any] = {}
    for address in ADDRESSES:
        paths.setdefault(address.path, {})[address.method.lower()] = _operation(address, schemas)
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


def _operation(address: Address, schemas: dict[str, Any]) -> dict[str, Any]:
    request = address.descriptor.input_type
    in_path = [_parameter(request, name, "path", schemas) for name in address.fields]
    others = [f.name for f in request.fields if f.name not in address.fields]
    operation: dict[str, Any] = {
        "operationId": address.rpc,
        "summary": address.summary,
        "parameters": in_path,
        "responses": {
            "200": {
                "description": "Done.",
                "content": _json(_reference(address.descriptor.output_type, schemas)),
            },
            "default": {
                "description": "Refused, with the code of gRPC and the reason.",
                "content": _json({"$ref": "#/components/schemas/Refusal"}),
            },
        },
    }
    if address.has_body and others:
        operation["requestBody"] = {"content": _json(_object(request, others, schemas))}
    else:
        operation["parameters"] += [_parameter(request, name, "query", schemas) for name in others]
    return operation


def _parameter(
    message: Descriptor, name: str, place: str, schemas: dict[str, Any]
) -> dict[str, Any]:
    field: Any = message.fields_by_name[name]
    schema = _field(field, schemas)
    if is_map(field):
        # In an address a map is a list of pairs.
        schema = {"type": "array", "items": {"type": "string", "pattern": "^[^:]*:.*$"}}
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _reference(message: Descriptor, schemas: dict[str, Any]) -> dict[str, str]:
    name = message.full_name
    if name not in schemas:
        # A message that contains itself finds its name here already.
        schemas[name] = {}
        schemas[name] = _object(message, [field.name for field in message.fields], schemas)
    return {"$ref": f"#/components/schemas/{name}"}


def _object(message: Descriptor, names: list[str], schemas: dict[str, Any]) -> dict[str, Any]:
    properties = {name: _field(message.fields_by_name[name], schemas) for name in names}
    return {"type": "object", "properties": properties}


def _field(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": _one(value, schemas)}
    if field.is_repeated:
        return {"type": "array", "items": _one(field, schemas)}
    return _one(field, schemas)


def _one(field: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        return _reference(field.message_type, schemas)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return {"type": "string", "contentEncoding": "base64"}
    return dict(_SCALARS[field.cpp_type])


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
