# SPDX-License-Identifier: Apache-2.0
"""Documents in the shape of an AWS API, such as the task definition in a repository.

They are read as upstream reads them into the types of AWS: keys in any case, numbers where AWS
wants text, and keys that AWS does not know are left out.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from pipecd.sdk.diff import is_list, is_map, scalar_text
from pipecd.sdk.unstructured import Body


@dataclass(frozen=True)
class Fitted:
    """A document with the keys of AWS, and the paths of keys that AWS does not know."""

    document: dict[str, Any]
    unknown: tuple[str, ...]


def fit(service: str, shape: str, document: Body) -> Fitted:
    """Returns a document in a shape of a service; it reads the model of the service once."""
    unknown: list[str] = []
    fitted = _fit(_shapes(service).shape_for(shape), document, (), unknown)
    return Fitted(cast("dict[str, Any]", fitted), tuple(unknown))


def go_names(service: str, shape: str, document: Body) -> dict[str, Any]:
    """Returns a document with the names of fields that upstream shows, such as `DesiredCount`."""
    return _renamed(_shapes(service).shape_for(shape), document)


@cache
def _shapes(service: str) -> Any:
    import botocore.session  # noqa: PLC0415

    return cast("Any", botocore.session).Session().get_service_model(service)


def _fit(shape: Any, value: Any, path: tuple[str, ...], unknown: list[str]) -> Any:
    match shape.type_name:
        case "structure" if is_map(value):
            members = {name.lower(): name for name in shape.members}
            fitted: dict[str, Any] = {}
            for key, child in value.items():
                name = members.get(str(key).lower())
                if name is None:
                    unknown.append(".".join((*path, str(key))))
                elif child is not None:
                    fitted[name] = _fit(shape.members[name], child, (*path, name), unknown)
            return fitted
        case "list" if is_list(value):
            return [
                _fit(shape.member, child, (*path, str(index)), unknown)
                for index, child in enumerate(value)
            ]
        case "map" if is_map(value):
            return {
                str(key): _fit(shape.value, child, (*path, str(key)), unknown)
                for key, child in value.items()
            }
        case "string" if isinstance(value, bool | int | float):
            return scalar_text(value)
        case "integer" | "long" if isinstance(value, float) and value.is_integer():
            return int(value)
        case _:
            return value


def _renamed(shape: Any, value: Any) -> Any:
    if shape.type_name == "structure" and is_map(value):
        return {
            name[:1].upper() + name[1:]: _renamed(shape.members[name], child)
            for name, child in value.items()
            if name in shape.members
        }
    if shape.type_name == "list" and is_list(value):
        return [_renamed(shape.member, child) for child in value]
    return value
