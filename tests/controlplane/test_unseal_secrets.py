# SPDX-License-Identifier: Apache-2.0
"""`pipecd unseal-secrets`, the way back to upstream's control plane."""

import asyncio
from pathlib import Path

from click.testing import CliRunner

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.command import unseal_secrets
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.projects import Projects
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from servers.control_plane import open_control_plane

CONFIG = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
"""


async def save_secret(directory: Path) -> str:
    """Saves a client secret with the use case; returns it as it is stored."""
    oidc = ProjectSSOConfig.Oidc(client_id="id", client_secret="s3cret", issuer="https://idp.x")
    config = ProjectSSOConfig(provider=ProjectSSOConfig.OIDC, oidc=oidc)
    async with open_control_plane(directory) as plane:
        await plane.cases.projects.set_sso(config, by=User("shop", "root", ("Admin",)))
    return await stored_secret(directory)


async def stored_secret(directory: Path) -> str:
    async with open_sqlite(directory / "pipecd.db") as database:
        return (await Projects(database).get("shop")).sso.oidc.client_secret


def test_sealed_secrets_are_stored_as_upstream_reads_them(tmp_path: Path) -> None:
    assert "s3cret" not in asyncio.run(save_secret(tmp_path))
    config, key = tmp_path / "control-plane.yaml", tmp_path / "key"
    config.write_text(CONFIG.format(directory=tmp_path))
    key.write_bytes(b"k" * 32)
    options = ["--config-file", str(config), "--encryption-key-file", str(key)]
    result = CliRunner().invoke(unseal_secrets, options, catch_exceptions=False)
    assert result.output == "unsealed the client secrets of 1 project\n"
    assert asyncio.run(stored_secret(tmp_path)) == "s3cret"
    result = CliRunner().invoke(unseal_secrets, options, catch_exceptions=False)
    assert result.output == "unsealed the client secrets of 0 projects\n"
