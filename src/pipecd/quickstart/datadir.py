# SPDX-License-Identifier: Apache-2.0
"""The data directory of a quickstart: secrets, configuration, databases and sample repository."""

import base64
import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pipecd.model.errors import UserMistake
from pipecd.program.atomic_write import write_private
from pipecd.program.dirlock import lock_directory
from pipecd.quickstart.sample_repository import BRANCH, REPOSITORY_ID, SERVICE

PROJECT = "quickstart"
TARGET = "local"
USERNAME = "admin"
_ELSEWHERE = "choose another directory with --data-dir"

_CONTROL_PLANE = """# `pipecd quickstart` writes this file; `pipecd server` reads such files too.
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: {address}
  stateKey: {project}
  datastore:
    type: SQLITE
    config:
      path: {database}
  filestore:
    type: LOCAL
    config:
      path: {files}
"""

_PIPED = """# `pipecd quickstart` writes this file; `piped run` reads such files too.
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: {project}
  pipedID: {piped_id}
  pipedKeyData: {piped_key}
  apiAddress: {api_address}
  webAddress: {address}
  repositories:
    - repoID: {repository_id}
      remote: {remote}
      branch: {branch}
  plugins:
    - name: analysis
    - name: process
      deployTargets:
        - name: {target}
          config:
            directory: {programs}
            statusPort: {status_port}
    - name: scriptrun
    - name: wait
    - name: waitapproval
"""


@dataclass(frozen=True)
class Identity:
    """The password, the ports, and the generated ids and keys; empty until they are registered.

    `is_service_deployed` tells whether a version of the web service was ever deployed.
    """

    password: str
    piped_id: str = ""
    piped_key: str = ""
    application_id: str = ""
    service_id: str = ""
    service_port: int = 0
    status_port: int = 0
    is_service_deployed: bool = False


@dataclass(frozen=True)
class DataDir:
    """The files of one quickstart."""

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
    def has_service(self) -> bool:
        """Whether the repository has the web service; one of an earlier version has not."""
        return (self.repository / SERVICE).is_dir()

    @property
    def programs(self) -> Path:
        """The directory of the supervisor and the programs that it runs."""
        return self.path / "programs"

    @property
    def identity_file(self) -> Path:
        return self.path / "identity.json"

    def load_identity(self) -> Identity:
        """Reads the identity; the first call creates it."""
        if self.identity_file.exists():
            try:
                return Identity(**json.loads(self.identity_file.read_text()))
            except (ValueError, TypeError) as e:
                raise UserMistake(f"{self.identity_file} is damaged", hint=_ELSEWHERE) from e
        identity = Identity(password=secrets.token_urlsafe(12))
        self.save_identity(identity)
        return identity

    def save_identity(self, identity: Identity) -> None:
        write_private(self.identity_file, json.dumps(asdict(identity), indent=2).encode())

    def load_encryption_key(self) -> bytes:
        """Reads the key that signs sessions and encrypts secrets; the first call creates it."""
        if not self.encryption_key.exists():
            write_private(self.encryption_key, secrets.token_hex(32).encode())
        return self.encryption_key.read_bytes()

    def write_control_plane_config(self, *, address: str) -> bytes:
        """Writes the configuration of the control plane and returns it."""
        text = _CONTROL_PLANE.format(
            address=address,
            project=PROJECT,
            database=_yaml_string(self.path / "pipecd.db"),
            files=_yaml_string(self.path / "files"),
        )
        write_private(self.control_plane_config, text.encode())
        return text.encode()

    def write_piped_config(self, identity: Identity, *, host: str, port: int) -> bytes:
        """Writes the configuration of the piped and returns it."""
        text = _PIPED.format(
            project=PROJECT,
            piped_id=identity.piped_id,
            piped_key=base64.b64encode(identity.piped_key.encode()).decode(),
            api_address=f"{host}:{port}",
            address=f"http://{host}:{port}",
            repository_id=REPOSITORY_ID,
            remote=self.repository.as_uri(),
            branch=BRANCH,
            target=TARGET,
            programs=_yaml_string(self.programs),
            status_port=identity.status_port,
        )
        write_private(self.piped_config, text.encode())
        return text.encode()


def _yaml_string(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


@contextmanager
def locked_data_dir(path: Path) -> Generator[DataDir, None, None]:
    """Creates the directory and locks it against other quickstarts until the block ends."""
    with lock_directory(path, program="quickstart", elsewhere=_ELSEWHERE):
        yield DataDir(path.resolve())
