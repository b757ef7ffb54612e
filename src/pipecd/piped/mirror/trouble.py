# SPDX-License-Identifier: Apache-2.0
"""Tells once that the control plane is away, and once that it is back."""

import structlog

from pipecd.model.errors import PipecdError

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Trouble:
    """What keeps one thing from being asked or told, if anything."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._kind: type[PipecdError] | None = None

    def met(self, error: PipecdError) -> None:
        """It failed, perhaps once more; only another kind of failure is told again."""
        if self._kind is not type(error):
            self._kind = type(error)
            log.warning(
                "control plane did not answer, going on with what is known",
                what=self._what,
                error=str(error),
            )

    def over(self) -> None:
        """It was done."""
        if self._kind is not None:
            self._kind = None
            log.info("control plane answers again", what=self._what)
