# SPDX-License-Identifier: Apache-2.0
"""What every provider of identities offers."""

from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from pipecd.controlplane.auth.rbac import VIEWER
from pipecd.model.errors import Denied
from pipecd.proto.model.project_pb2 import Project


@dataclass(frozen=True)
class Trip:
    """One sign-in, from leaving for the provider to coming back."""

    project: Project
    state: str
    nonce: str = field(repr=False)
    # Where people come back to, without anything that is particular to this trip.
    callback: str


@dataclass(frozen=True)
class Identity:
    """Somebody as the provider knows them, with the roles that this gives in a project."""

    name: str
    roles: tuple[str, ...]
    avatar_url: str = ""


class Provider(Protocol):
    """A site where people prove who they are."""

    # What its button says after "Sign in with".
    label: str

    async def way_out(self, trip: Trip) -> str:
        """The address at the provider where a trip goes first."""
        ...

    async def identify(self, code: str, trip: Trip) -> Identity:
        """Who came back with this code."""
        ...


def consent_url(endpoint: str, **query: str) -> str:
    """The address where people agree to be identified."""
    usual = {"access_type": "online", "prompt": "consent", "response_type": "code"}
    glue = "&" if urlsplit(endpoint).query else "?"
    return f"{endpoint}{glue}{urlencode(sorted({**usual, **query}.items()))}"


def stray(project: Project, because: str) -> tuple[str, ...]:
    """The roles of somebody who has none: those of a viewer where the project lets strays in."""
    if project.allow_stray_as_viewer:
        return (VIEWER,)
    raise Denied(f"{because}, ask an administrator of project {project.id}")


def is_web_address(text: str) -> bool:
    """Whether a text is an address that a browser could open."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
