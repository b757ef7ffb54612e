# SPDX-License-Identifier: Apache-2.0
"""Keys that already matched their bcrypt hash.

A bcrypt comparison takes tens of milliseconds of CPU. It runs once per key; after that a keyed
digest of key and hash is looked up, in memory and in the cache that all replicas share. The digest
covers the stored hash, so it becomes worthless once that hash is replaced or deleted.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable

import structlog

from pipecd.cache import LruCache
from pipecd.controlplane.cache import Cache
from pipecd.model.errors import PipecdError

log = structlog.get_logger()

MAX_VERIFIED_KEYS = 10_000
MAX_CONCURRENT_COMPARISONS = 2
SHARED_TTL_SECONDS = 24 * 3600.0

Compare = Callable[[str, str], bool]


class VerifiedKeys:
    """Compares keys with stored hashes: by bcrypt the first time, by a digest from then on."""

    def __init__(self, cache: Cache, secret: bytes, compare: Compare) -> None:
        self._cache, self._compare = cache, compare
        # The label is part of the digests in the shared cache; another one would discard them.
        self._secret = hmac.digest(secret, b"pipecd credential proofs", hashlib.sha256)
        self._digests = LruCache[str, bool](MAX_VERIFIED_KEYS)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_COMPARISONS)

    def digest(self, *parts: str) -> str:
        """A keyed digest of these secrets, from which they cannot be recovered."""
        text = "".join([f"{len(part)}:{part}" for part in parts])
        # BLAKE2b keeps the GIL for so short a text; HMAC releases it, which costs a thread switch.
        return hashlib.blake2b(text.encode(), key=self._secret, digest_size=32).hexdigest()

    async def is_verified(self, key: str, hashed: str) -> bool:
        """Whether this replica or another one has already matched the key with the hash."""
        digest = self.digest(key, hashed)
        if self._digests.get(digest):
            return True
        try:
            shared = await self._cache.get(_cache_key(digest))
        except PipecdError as e:
            log.warning("shared cache not readable, comparing the key again", error=str(e))
            return False
        if shared is None:
            return False
        self._digests.put(digest, True)
        return True

    async def verify(self, key: str, hashed: str) -> bool:
        """Compares the key with its bcrypt hash and caches a match."""
        async with self._slots:
            if not await asyncio.to_thread(self._compare, key, hashed):
                return False
        digest = self.digest(key, hashed)
        self._digests.put(digest, True)
        try:
            await self._cache.put(_cache_key(digest), b"1", ttl_seconds=SHARED_TTL_SECONDS)
        except PipecdError as e:
            log.warning("shared cache not writable, other replicas compare again", error=str(e))
        return True


def _cache_key(digest: str) -> str:
    return f"pipecd:credential:{digest}"
