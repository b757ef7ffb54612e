# SPDX-License-Identifier: Apache-2.0
"""Keeps decrypted secrets out of everything that people can read."""

from collections.abc import Iterable

MASK = "******"
# Masking shorter texts would blot out words that happen to contain them.
_SHORTEST = 4


class Masks:
    """The secrets in the working copies of the deployments at work."""

    def __init__(self) -> None:
        self._secrets: dict[str, tuple[str, ...]] = {}

    def add(self, deployment_id: str, secrets: Iterable[str]) -> None:
        """Hides these from now on; logs come line by line, so each line of a secret is one."""
        lines = {line.strip() for secret in secrets for line in secret.splitlines()}
        known = lines.union(self._secrets.get(deployment_id, ()))
        # The longest first, as one secret may contain another.
        kept = sorted((s for s in known if len(s) >= _SHORTEST), key=len, reverse=True)
        self._secrets[deployment_id] = tuple(kept)

    def forget(self, deployment_id: str) -> None:
        """The deployment is over."""
        self._secrets.pop(deployment_id, None)

    def hide(self, deployment_id: str, text: str) -> str:
        """The text without the secrets of the deployment."""
        for secret in self._secrets.get(deployment_id, ()):
            text = text.replace(secret, MASK)
        return text
