# SPDX-License-Identifier: Apache-2.0
"""Keeps secrets out of text that people can read."""

from collections.abc import Iterable

MASK = "******"
# Masking shorter texts would blot out words that happen to contain them.
_SHORTEST = 4


class Masking:
    """Hides a set of secrets; text comes line by line, so each line of a secret is one."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        lines = {line.strip() for secret in secrets for line in secret.splitlines()}
        # The longest first, as one secret may contain another.
        self._secrets = tuple(
            sorted((s for s in lines if len(s) >= _SHORTEST), key=len, reverse=True)
        )

    def hide(self, text: str) -> str:
        """The text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text
