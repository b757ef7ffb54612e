# SPDX-License-Identifier: Apache-2.0
"""Remembers the digest of what an address first returned, so that a change is noticed.

It is trust on first use, as with the host keys of SSH, for downloads without a checksum.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, cast

from pipecd.model.errors import UserMistake

_DIGEST, _LABEL = "digest", "of"


def file_digest(path: Path) -> str:
    """Returns the digest of a file as `sha256:…`."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


class KnownDigests:
    """A file with the digests of addresses; an address may contain secrets, a label does not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, address: str) -> str:
        """Returns the digest that an address had first; empty if it is new."""
        return str(self._read().get(_key(address), {}).get(_DIGEST, ""))

    def remember(self, address: str, digest: str, *, label: str) -> None:
        """Stores the digest of an address in place of an earlier one."""
        entries = self._read()
        entry = {_LABEL: label, _DIGEST: digest}
        if entries.get(_key(address)) != entry:
            entries[_key(address)] = entry
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=f".{self.path.name}-", delete=False
            ) as file:
                json.dump(entries, file, indent=2, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self.path)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            parsed: Any = json.loads(self.path.read_bytes())
            return {str(k): dict(v) for k, v in cast("dict[str, Any]", parsed).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as e:
            # Starting anew would accept whatever is downloaded next.
            raise UserMistake(
                f"{self.path} is damaged",
                hint="remove it to trust the next downloads as the first ones",
            ) from e


def _key(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest()
