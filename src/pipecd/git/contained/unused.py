# SPDX-License-Identifier: Apache-2.0
"""What is kept for working copies although none has it any more."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_UNUSED_SECONDS = 30 * 24 * 3600


def unused(kept: Iterable[Path]) -> Iterator[Path]:
    """What was in no working copy for so long that it is fetched again if it should return."""
    oldest = time.time() - _UNUSED_SECONDS
    return (path for path in kept if path.stat().st_mtime < oldest)
