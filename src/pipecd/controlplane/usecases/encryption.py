# SPDX-License-Identifier: Apache-2.0
"""Secrets of applications, sealed for one piped; only that piped can open them."""

import base64

from pipecd.config.piped import KEY_PAIR
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.usecases.access import Access
from pipecd.model.errors import Conflict, PipecdError, UserMistake
from pipecd.secrets import hybrid

_UPDATE = Permission(Resource.APPLICATION, Action.UPDATE)


class Encryption:
    """Seals secrets with the public keys that pipeds report."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def encrypt(
        self, piped_id: str, plaintext: str, *, base64_encoding: bool = False, by: UserOrApiKey
    ) -> str:
        """The sealed text; with `base64_encoding` the plaintext is encoded first."""
        # Sealing reveals nothing and changes nothing, so a read-only API key may do it.
        await self._access.scope(by, _UPDATE, writes=False)
        piped = await self._access.piped(piped_id, by=by)
        sealing = piped.secret_encryption
        if sealing.type != KEY_PAIR or not sealing.public_key:
            raise Conflict(
                f"piped {piped.name} has no public key to encrypt with",
                hint=f"add secretManagement of type {KEY_PAIR} to its configuration",
            )
        if base64_encoding:
            plaintext = base64.b64encode(plaintext.encode()).decode()
        try:
            return hybrid.encrypt(sealing.public_key.encode(), plaintext)
        except (PipecdError, ValueError) as e:
            raise UserMistake("Invalid public key") from e
