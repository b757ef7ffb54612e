# SPDX-License-Identifier: Apache-2.0
"""Reading files that may be damaged."""

from collections.abc import Callable
from typing import TypeVar

from pipecd.model.errors import PipecdError

T = TypeVar("T")


def decoded(path: str, content: bytes, read: Callable[[bytes], T]) -> T:
    """What a file says, or an error that names the file."""
    try:
        return read(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise PipecdError(
            f"the file {path} of the filestore is damaged",
            hint="restore it from a backup, or delete it to begin anew",
        ) from e
