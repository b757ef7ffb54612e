# SPDX-License-Identifier: Apache-2.0
"""With which secret the Git hosts of a project sign what they send."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class SealedSecret:
    """The encrypted secret of a project, and the one before it for as long as that is valid.

    Times are unix seconds. Without an earlier secret, `previous` is empty.
    """

    current: str
    created_at: int
    previous: str = ""
    previous_until: int = 0


class WebhookSecrets(Protocol):
    """One secret for each project that has made one."""

    async def get(self, project: str) -> SealedSecret | None: ...

    async def update(
        self, project: str, change: Callable[[SealedSecret | None], SealedSecret]
    ) -> None:
        """Replaces the secret under a lock; `change` may run more than once."""
        ...

    async def remove(self, project: str) -> None:
        """Forgets the secret; a project without one is no error."""
        ...
