# SPDX-License-Identifier: Apache-2.0
"""The files in which piped keeps state for its next start.

Whatever happens to them, piped goes on: a damaged file is set aside, a full disk is logged once.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from pipecd.program.atomic_write import write_private

log: structlog.stdlib.BoundLogger = structlog.get_logger()

T = TypeVar("T")

# A file that is damaged again and again must not fill the disk.
MAX_SET_ASIDE = 10


@dataclass
class StateFile:
    """A file of the workspace; `consequence` is what may happen while it cannot be written."""

    path: Path
    consequence: str
    _error: str = field(default="", init=False, repr=False)

    def read(self, parse: Callable[[bytes], T]) -> T | None:
        """Returns the parsed content of an earlier process, None if there is no valid one.

        `parse` raises ValueError for content of the wrong shape; such a file is set aside.
        """
        try:
            return parse(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            self.set_aside(e)
            return None

    def set_aside(self, error: Exception) -> None:
        """Renames the damaged file to `<name>.damaged-<n>`, where an operator finds it."""
        names = (f"{self.path.name}.damaged-{n}" for n in range(1, MAX_SET_ASIDE + 1))
        *_, last = paths = [self.path.with_name(name) for name in names]
        aside = next((path for path in paths if not path.exists()), last)
        with suppress(OSError):
            self.path.replace(aside)
        log.warning(
            "file of the workspace is damaged, set aside",
            file=str(self.path),
            set_aside_as=aside.name,
            error=str(error),
        )

    def write(self, content: bytes, *, scratch: Path | None = None) -> bool:
        """Replaces the file; returns whether that succeeded."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self.path, content, scratch=scratch)
        except OSError as e:
            self.failed(e)
            return False
        self.succeeded()
        return True

    def failed(self, error: OSError) -> None:
        """Logs that the file cannot be written, unless that is the last that was logged."""
        cause = error.strerror or str(error)
        if self._error != cause:
            self._error = cause
            log.warning(
                "file of the workspace cannot be written",
                file=str(self.path),
                error=cause,
                consequence=self.consequence,
            )

    def succeeded(self) -> None:
        """Logs that the file is written again, if it could not be written before."""
        if self._error:
            self._error = ""
            log.info("file of the workspace is written again", file=str(self.path))
