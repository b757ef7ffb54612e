# SPDX-License-Identifier: Apache-2.0
"""Who we are to a registry: what `docker login` has kept, and what a registry asks for."""

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipecd.model.errors import UserMistake

_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Login:
    """A name and a password or token; both empty for nobody."""

    username: str = ""
    password: str = ""

    @property
    def basic(self) -> str:
        """The value of the header Authorization."""
        return f"Basic {base64.b64encode(f'{self.username}:{self.password}'.encode()).decode()}"


@dataclass(frozen=True)
class Challenge:
    """How a registry wants to be asked."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenge(header: str) -> Challenge:
    """Reads the header WWW-Authenticate."""
    scheme, _, rest = header.partition(" ")
    return Challenge(scheme.lower(), dict(_PARAMETER.findall(rest)))


def docker_login(host: str) -> Login:
    """What Docker's configuration file says about a registry."""
    directory = os.environ.get("DOCKER_CONFIG")
    path = Path(directory) if directory else Path.home() / ".docker"
    try:
        return login_of((path / "config.json").read_bytes(), host)
    except FileNotFoundError:
        return Login()
    except (OSError, ValueError) as e:
        raise UserMistake(
            f"cannot read the logins of registries in {path / 'config.json'}: {e}",
            hint="run docker login again, or set DOCKER_CONFIG to another directory",
        ) from e


def login_of(content: bytes, host: str) -> Login:
    """Finds a registry among the logins of Docker; a credential helper is not asked."""
    parsed: Any = json.loads(content)
    logins = cast("dict[str, Any]", parsed).get("auths") if isinstance(parsed, dict) else None
    for address, kept in cast("dict[str, Any]", logins or {}).items():
        name = address.partition("://")[2] or address
        if name.partition("/")[0] == host and isinstance(kept, dict):
            return _decoded(cast("dict[str, Any]", kept))
    return Login()


def _decoded(kept: Mapping[str, Any]) -> Login:
    if "username" in kept:
        return Login(str(kept["username"]), str(kept.get("password", "")))
    try:
        text = base64.b64decode(str(kept.get("auth", "")), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as e:
        raise ValueError(f"a login is not base64: {e}") from e
    username, _, password = text.partition(":")
    return Login(username, password.strip("\0"))
