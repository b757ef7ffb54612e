# SPDX-License-Identifier: Apache-2.0
"""What the claims of a provider say about a person: name, picture and roles. Pure."""

from collections.abc import Mapping
from typing import Any, cast

from pipecd.controlplane.auth.rbac import BUILT_IN_NAMES
from pipecd.controlplane.auth.sso.provider import stray
from pipecd.model.errors import Unauthenticated
from pipecd.proto.model.project_pb2 import Project

Claims = Mapping[str, Any]

_ROLES = ("groups", "roles", "cognito:groups", "custom:roles", "custom:groups")
_NAMES = ("username", "preferred_username", "name", "cognito:username")
_AVATARS = ("picture", "avatar_url")


def roles_of(claims: Claims, key: str, project: Project) -> tuple[str, ...]:
    """The built-in roles that the claims name, each once; groups of the project are not asked."""
    values = [value for name in _keys(key, _ROLES) for value in _texts(claims.get(name))]
    roles = tuple(dict.fromkeys(value for value in values if value in BUILT_IN_NAMES))
    if roles:
        return roles
    if not values:
        return stray(project, "no role found in claims")
    return stray(project, "your claims name none of the roles Admin, Editor and Viewer")


def name_of(claims: Claims, key: str) -> str:
    for name in _keys(key, _NAMES):
        if found := _text(claims.get(name)):
            return found
    raise Unauthenticated(f"none of the claims {', '.join(_keys(key, _NAMES))} tells your name")


def avatar_of(claims: Claims, key: str) -> str:
    found = (_text(claims.get(name)) for name in _keys(key, _AVATARS))
    return next((avatar for avatar in found if avatar), "")


def _keys(chosen: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    return (chosen,) if chosen else usual


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Any) -> list[str]:
    given: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [text for text in given if isinstance(text, str)]
