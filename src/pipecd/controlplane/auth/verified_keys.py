# SPDX-License-Identifier: Apache-2.0
"""Keys that already matched their bcrypt hash.

A bcrypt comparison takes tens of milliseconds of CPU, which is minutes if thousands of pipeds
reconnect to a restarted control plane. It runs once per key; after that a keyed digest of key and
hash is looked up, in memory and in the database. The digest covers the stored hash, so it becomes
worthless once that hash is replaced or deleted. Its secret is not in the database.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable

import structlog

from pipecd.cache import LruCache
from pipecd.controlplane.datastore.verified_keys import VerifiedKeyDigests
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError

log = structlog.get_logger()

MAX_VERIFIED_KEYS = 10_000
MAX_CONCURRENT_COMPARISONS = 2
# A key is compared again after so many seconds in which no restart looked it up.
STORED_SECONDS = 30 * 24 * 3600

Compare = Callable[[str, str], bool]


class VerifiedKeys:
    """Compares keys with stored hashes: by bcrypt the first time, by a digest from then on."""

    def __init__(
        self, stored: VerifiedKeyDigests, secret: bytes, compare: Compare, *, now: Now = utc_now
    ) -> None:
        self._stored, self._compare, self._now = stored, compare, now
        # The label is part of the stored digests; another one would discard them.
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
        now = to_unix(self._now())
        try:
            expires_at = await self._stored.expiry(digest, now=now)
        except PipecdError as e:
            log.warning("verified keys not readable, comparing the key again", error=str(e))
            return False
        if expires_at is None:
            return False
        self._digests.put(digest, True)
        if expires_at < now + STORED_SECONDS // 2:
            await self._store(digest)
        return True

    async def verify(self, key: str, hashed: str) -> bool:
        """Compares the key with its bcrypt hash and caches a match."""
        async with self._slots:
            if not await asyncio.to_thread(self._compare, key, hashed):
                return False
        digest = self.digest(key, hashed)
        self._digests.put(digest, True)
        await self._store(digest)
        return True

    async def _store(self, digest: str) -> None:
        try:
            await self._stored.put(digest, expires_at=to_unix(self._now()) + STORED_SECONDS)
        except PipecdError as e:
            log.warning("verified key not stored, it will be compared again", error=str(e))
