# SPDX-License-Identifier: Apache-2.0
"""The key pair for secrets is rotated while applications are deployed."""

import base64
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import GatedControlPlane, OpenControlPlane
from servers.google import GoogleCloud
from servers.origin import Origin

pytestmark = pytest.mark.slow


def new_pair() -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "privateKeyData": base64.b64encode(private).decode(),
        "publicKeyData": base64.b64encode(public).decode(),
    }


def piped(
    plane: GatedControlPlane, remote: str, management: dict[str, Any]
) -> AbstractAsyncContextManager[object]:
    """The one piped of the plane with these keys."""
    return plane.piped.run(remote, f"secretManagement: {json.dumps(management)}\n")


def application(sealed: dict[str, str]) -> dict[str, str]:
    """An application whose script succeeds if it reads its secrets."""
    tests = " && ".join(f'test "$(cat {name})" = "{name} secret"' for name in sealed)
    spec = {
        "name": "cart",
        "encryption": {"encryptedSecrets": sealed, "decryptionTargets": list(sealed)},
        "pipeline": {"stages": [{"name": "SCRIPT_RUN", "with": {"run": tests}}]},
    }
    config = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
    files = {f"cart/{name}": f"{{{{ .encryptedSecrets.{name} }}}}" for name in sealed}
    return {"cart/app.pipecd.yaml": json.dumps(config), **files}


async def sealed(plane: Any, text: str) -> str:
    """A secret as `pipectl encrypt` and the console encrypt it."""
    return await plane.cases.encryption.encrypt(plane.piped.id, text, by=plane.admin)


async def test_a_new_key_is_used_at_once_and_the_old_one_until_it_is_removed(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    origin.commit({"README": ""})
    first, second = new_pair(), new_pair()
    old = {"privateKeyData": first["privateKeyData"]}
    async with open_plane() as plane:
        async with piped(plane, origin.remote, {"type": "KEY_PAIR", "config": first}):
            secrets = {"old": await sealed(plane, "old secret")}
        both = {"type": "KEY_PAIR", "config": {**second, "previousKeys": [old]}}
        async with piped(plane, origin.remote, both):
            secrets["new"] = await sealed(plane, "new secret")
            commit = origin.commit(application(secrets))
            await plane.piped.add_repository("site", origin.remote)
            await plane.piped.add_application("cart")
            done = await plane.wait_for_completed(commit, within=30)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
        async with piped(plane, origin.remote, {"type": "KEY_PAIR", "config": second}):
            done = await plane.wait_for_completed(origin.commit({"cart/x": ""}), within=30)
    assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
    reason = (
        "failed to decrypt old secret (the encrypted secret cannot be read: it was encrypted for"
    )
    assert f"{reason} another key than this piped has" in done.status_reason


async def test_a_key_of_a_cloud_works_like_any_other(
    open_plane: OpenControlPlane, origin: Origin, google: GoogleCloud
) -> None:
    origin.commit({"README": ""})
    name = "projects/shop/locations/global/keyRings/r/cryptoKeys/piped/cryptoKeyVersions/1"
    google.add_key(name)
    management = {"type": "GCP_KMS", "config": {"keyName": name}}
    async with open_plane() as plane, piped(plane, origin.remote, management):
        reported = await plane.cases.pipeds.get(plane.piped.id, by=plane.admin)
        assert reported.secret_encryption.type == "KEY_PAIR", "upstream's control plane knows it"
        commit = origin.commit(application({"only": await sealed(plane, "only secret")}))
        await plane.piped.add_repository("site", origin.remote)
        await plane.piped.add_application("cart")
        done = await plane.wait_for_completed(commit, within=30)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
