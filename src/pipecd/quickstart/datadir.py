# SPDX-License-Identifier: Apache-2.0
"""The directory that holds a quickstart: its secrets, its stores and its sample repository."""

import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pipecd.model.errors import UserMistake
from pipecd.program.atomic_write import write_private
from pipecd.program.dirlock import lock_directory

PROJECT = "quickstart"
USERNAME = "admin"
_ELSEWHERE = "choose another directory with --data-dir"


@dataclass(frozen=True)
class Identity:
    """What a quickstart makes up on its first start and keeps; `piped_id` is empty until then."""

    password: str
    piped_id: str = ""
    piped_key: str = ""
    application_id: str = ""


@dataclass(frozen=True)
class DataDir:
    """Where everything of one quickstart lies."""

    path: Path

    @property
    def encryption_key(self) -> Path:
        return self.path / "encryption-key"

    @property
    def control_plane_config(self) -> Path:
        return self.path / "control-plane.yaml"

    @property
    def piped_config(self) -> Path:
        return self.path / "piped.yaml"

    @property
    def api_key(self) -> Path:
        return self.path / "api-key"

    @property
    def piped_workspace(self) -> Path:
        return self.path / "piped"

    @property
    def repository(self) -> Path:
        return self.path / "sample"

    @property
    def _identity(self) -> Path:
        return self.path / "identity.json"

    def identity(self) -> Identity:
        """The identity of this quickstart, made on the first call."""
        if self._identity.exists():
            try:
                return Identity(**json.loads(self._identity.read_text()))
            except (ValueError, TypeError) as e:
                raise UserMistake(f"{self._identity} is damaged", hint=_ELSEWHERE) from e
        identity = Identity(password=secrets.token_urlsafe(12))
        self.keep(identity)
        return identity

    def keep(self, identity: Identity) -> None:
        """Stores the identity where only its owner can read it."""
        write_private(self._identity, json.dumps(asdict(identity), indent=2).encode())

    def key(self) -> bytes:
        """The key of sessions and stored secrets, made on the first call."""
        if not self.encryption_key.exists():
            write_private(self.encryption_key, secrets.token_hex(32).encode())
        return self.encryption_key.read_bytes()


@contextmanager
def locked(path: Path) -> Generator[DataDir, None, None]:
    """Makes the directory and keeps every other quickstart out of it until the block ends."""
    with lock_directory(path, program="quickstart", elsewhere=_ELSEWHERE):
        yield DataDir(path.resolve())
