# SPDX-License-Identifier: Apache-2.0
"""Who of several replicas does a background job."""

from typing import Protocol


class Leases(Protocol):
    """Named leases; exactly one holder at a time."""

    async def acquire(self, name: str, holder: str, *, seconds: float) -> bool:
        """Takes or renews the lease; False while someone else holds it."""
        ...

    async def release(self, name: str, holder: str) -> None:
        """Gives it back; a lease held by someone else is left alone."""
        ...
