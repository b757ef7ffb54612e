# SPDX-License-Identifier: Apache-2.0
"""Which key was already found to match which stored hash.

A bcrypt comparison takes tens of milliseconds of a processor. It is made once per key; after that a
keyed digest of key and hash stands for it, in memory and in the cache that all replicas share. The
digest is bound to the stored hash, so it proves nothing once that hash is gone.
"""

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable

import structlog

from pipecd.controlplane.cache import Cache
from pipecd.model.errors import PipecdError

log = structlog.get_logger()

MOST_PROOFS = 10_000
COMPARISONS_AT_ONCE = 2
SHARED_SECONDS = 24 * 3600.0

Compare = Callable[[str, str], bool]


class Proofs:
    """Compares keys with stored hashes, slowly once and quickly from then on."""

    def __init__(self, cache: Cache, secret: bytes, compare: Compare) -> None:
        self._cache, self._compare = cache, compare
        self._secret = hmac.digest(secret, b"pipecd credential proofs", hashlib.sha256)
        self._known: OrderedDict[str, None] = OrderedDict()
        self._slots = asyncio.Semaphore(COMPARISONS_AT_ONCE)

    def digest(self, *parts: str) -> str:
        """A name for these secrets that tells nothing about them."""
        text = "".join([f"{len(part)}:{part}" for part in parts])
        # Unlike an HMAC it is made without letting another thread in, which takes far longer.
        return hashlib.blake2b(text.encode(), key=self._secret, digest_size=32).hexdigest()

    async def is_known(self, key: str, hashed: str) -> bool:
        """Whether the two were compared before, here or by another replica, and matched."""
        proof = self.digest(key, hashed)
        if proof in self._known:
            self._known.move_to_end(proof)
            return True
        try:
            shared = await self._cache.get(_shared_name(proof))
        except PipecdError as e:
            log.warning("shared cache not readable, comparing the key again", error=str(e))
            return False
        if shared is None:
            return False
        self._remember(proof)
        return True

    async def matches(self, key: str, hashed: str) -> bool:
        """Compares the two with the slow hash and keeps a match."""
        async with self._slots:
            if not await asyncio.to_thread(self._compare, key, hashed):
                return False
        proof = self.digest(key, hashed)
        self._remember(proof)
        try:
            await self._cache.put(_shared_name(proof), b"1", ttl_seconds=SHARED_SECONDS)
        except PipecdError as e:
            log.warning("shared cache not writable, other replicas compare again", error=str(e))
        return True

    def _remember(self, proof: str) -> None:
        self._known[proof] = None
        if len(self._known) > MOST_PROOFS:
            self._known.popitem(last=False)


def _shared_name(proof: str) -> str:
    return f"pipecd:credential:{proof}"
