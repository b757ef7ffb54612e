# SPDX-License-Identifier: Apache-2.0
"""Keeps decrypted secrets out of what is shown about the deployments at work."""

from collections.abc import Iterable, Sequence

from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.secrets.masking import KnownSecrets, Masking

_NOTHING = Masking()


class Masks:
    """The secrets in the working copies of the deployments at work."""

    def __init__(self) -> None:
        self._secrets: dict[str, frozenset[str]] = {}
        self._masking: dict[str, Masking] = {}
        self.known = KnownSecrets()
        """Those of all applications, for the log of piped; whoever decrypts more adds them here."""

    def add(self, deployment_id: str, secrets: Iterable[str]) -> None:
        """Hides these from now on, too."""
        before = self._secrets.get(deployment_id, frozenset())
        known = before.union(secrets)
        self.known.add(known)
        if known != before:
            self._secrets[deployment_id], self._masking[deployment_id] = known, Masking(known)

    def forget(self, deployment_id: str) -> None:
        """The deployment is over."""
        self._secrets.pop(deployment_id, None)
        self._masking.pop(deployment_id, None)

    def hide(self, deployment_id: str, text: str) -> str:
        """The text without the secrets of the deployment."""
        return self.of(deployment_id).hide(text)

    def of(self, deployment_id: str) -> Masking:
        """What hides the secrets of a deployment."""
        return self._masking.get(deployment_id, _NOTHING)


class MaskedLog:
    """The log of one stage as it passes by, in requests that may cut a secret in two.

    Lines are not held back. The end of a request that looks like the beginning of a secret is
    hidden instead, and so is the rest of the secret in the next one. What was hidden for nothing
    in a report of a running stage is shown by the checkpoint, which has more lines at once.
    """

    def __init__(self, masks: Masks, deployment_id: str) -> None:
        self._masks, self._deployment_id = masks, deployment_id
        self._first: int = -1
        self._last: int = -1
        self._before, self._after = "", ""

    def hide(self, blocks: Sequence[LogBlock], *, is_end: bool = False) -> list[LogBlock]:
        """The blocks without the secrets."""
        if not blocks:
            return []
        masking = self._masks.of(self._deployment_id)
        if blocks[0].index > self._last:
            self._before = self._after
        elif blocks[0].index != self._first:
            # A request that is sent again follows what it followed; nothing is known of any other.
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
    """The block with another text."""
    return LogBlock(
        index=block.index, log=text, severity=block.severity, created_at=block.created_at
    )
