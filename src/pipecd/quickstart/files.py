# SPDX-License-Identifier: Apache-2.0
"""The configuration files of a quickstart, written where a person can read and learn from them."""

import base64
from pathlib import Path

from pipecd.program.atomic_write import write_private
from pipecd.quickstart.datadir import PROJECT, DataDir, Identity
from pipecd.quickstart.sample import BRANCH, REPOSITORY_ID

_CONTROL_PLANE = """# Written by `pipecd quickstart`; `pipecd server` reads such a file too.
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

_PIPED = """# Written by `pipecd quickstart`; `piped run` reads such a file too.
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
    - name: scriptrun
    - name: wait
    - name: waitapproval
"""


def write_control_plane(data: DataDir, *, address: str) -> bytes:
    """Writes and answers the configuration of the control plane."""
    text = _CONTROL_PLANE.format(
        address=address,
        project=PROJECT,
        database=_quoted(data.path / "pipecd.db"),
        files=_quoted(data.path / "files"),
    )
    write_private(data.control_plane_config, text.encode())
    return text.encode()


def write_piped(data: DataDir, identity: Identity, *, host: str, port: int) -> bytes:
    """Writes and answers the configuration of the piped."""
    text = _PIPED.format(
        project=PROJECT,
        piped_id=identity.piped_id,
        piped_key=base64.b64encode(identity.piped_key.encode()).decode(),
        api_address=f"{host}:{port}",
        address=f"http://{host}:{port}",
        repository_id=REPOSITORY_ID,
        remote=data.repository.as_uri(),
        branch=BRANCH,
    )
    write_private(data.piped_config, text.encode())
    return text.encode()


def _quoted(path: Path) -> str:
    """A path as a YAML scalar, whatever characters it holds."""
    return "'" + str(path).replace("'", "''") + "'"
