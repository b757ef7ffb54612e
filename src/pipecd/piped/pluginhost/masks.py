# SPDX-License-Identifier: Apache-2.0
"""Keeps decrypted secrets out of what is shown about the deployments at work."""

from collections.abc import Iterable

from pipecd.secrets.masking import Masking

_NOTHING = Masking()


class Masks:
    """The secrets in the working copies of the deployments at work."""

    def __init__(self) -> None:
        self._secrets: dict[str, frozenset[str]] = {}
        self._masking: dict[str, Masking] = {}

    def add(self, deployment_id: str, secrets: Iterable[str]) -> None:
        """Hides these from now on, too."""
        known = self._secrets.get(deployment_id, frozenset()).union(secrets)
        self._secrets[deployment_id], self._masking[deployment_id] = known, Masking(known)

    def forget(self, deployment_id: str) -> None:
        """The deployment is over."""
        self._secrets.pop(deployment_id, None)
        self._masking.pop(deployment_id, None)

    def hide(self, deployment_id: str, text: str) -> str:
        """The text without the secrets of the deployment."""
        return self._masking.get(deployment_id, _NOTHING).hide(text)
