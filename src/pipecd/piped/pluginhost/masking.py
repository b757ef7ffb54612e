# SPDX-License-Identifier: Apache-2.0
"""Masks decrypted secrets in the logs, reasons and metadata of deployments."""

from collections.abc import Iterable, Sequence

from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.secrets.masking import KnownSecrets, Masking

_NOTHING = Masking()


class SecretMasks:
    """The secrets in the working copies of the deployments in progress."""

    def __init__(self) -> None:
        self._secrets: dict[str, frozenset[str]] = {}
        self._masking: dict[str, Masking] = {}
        self.all = KnownSecrets()
        """The secrets of all applications, for the log of piped; decryption adds to it."""

    def add(self, deployment_id: str, secrets: Iterable[str]) -> None:
        """Adds secrets to mask in the output of a deployment."""
        before = self._secrets.get(deployment_id, frozenset())
        secrets = before.union(secrets)
        self.all.add(secrets)
        if secrets != before:
            self._secrets[deployment_id], self._masking[deployment_id] = secrets, Masking(secrets)

    def forget(self, deployment_id: str) -> None:
        """Forgets the secrets of a deployment that has ended."""
        self._secrets.pop(deployment_id, None)
        self._masking.pop(deployment_id, None)

    def hide(self, deployment_id: str, text: str) -> str:
        """Returns the text with the secrets of the deployment masked."""
        return self.of(deployment_id).hide(text)

    def of(self, deployment_id: str) -> Masking:
        """Returns what masks the secrets of a deployment."""
        return self._masking.get(deployment_id, _NOTHING)


class LogMasker:
    """Masks the log of one stage, whose requests may cut a secret in two.

    No line is delayed. If a request ends with what may be the beginning of a secret, that end is
    masked, and so is the rest of the secret in the next request. What was masked in vain while the
    stage runs appears in the checkpoint, which has more lines at once.
    """

    def __init__(self, masks: SecretMasks, deployment_id: str) -> None:
        self._masks, self._deployment_id = masks, deployment_id
        self._first: int = -1
        self._last: int = -1
        self._before, self._after = "", ""

    def hide(self, blocks: Sequence[LogBlock], *, is_end: bool = False) -> list[LogBlock]:
        """Returns the blocks with secrets masked."""
        if not blocks:
            return []
        masking = self._masks.of(self._deployment_id)
        if blocks[0].index > self._last:
            self._before = self._after
        elif blocks[0].index != self._first:
            # A repeated request follows the same text as before; any other request is unrelated.
            self._before = ""
        self._first, self._last = blocks[0].index, blocks[-1].index
        lines = [block.log for block in blocks]
        hidden = masking.hide_pieces(lines, after=self._before, is_end=is_end)
        self._after = masking.reach(self._before, *lines)
        return [
            block if block.log == text else with_text(block, text)
            for block, text in zip(blocks, hidden, strict=True)
        ]


def with_text(block: LogBlock, text: str) -> LogBlock:
    """Returns the block with another text."""
    return LogBlock(
        index=block.index, log=text, severity=block.severity, created_at=block.created_at
    )
