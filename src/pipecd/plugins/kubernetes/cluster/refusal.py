# SPDX-License-Identifier: Apache-2.0
"""What an API server said instead of doing what it was asked."""

from collections.abc import Mapping
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import at, list_at, text_at
from pipecd.sdk import PipecdError

_MALFORMED = ("failed to create typed patch object", "failed to convert new object")


class Refusal(PipecdError):
    """An answer of the API server that is no success."""

    def __init__(self, code: int, status: Mapping[str, Any], *, hint: str = "") -> None:
        super().__init__(text_at(status, "message") or f"HTTP status {code}", hint=hint)
        self.code = code
        self.reason = text_at(status, "reason")
        self.causes = tuple(
            (text_at(cause, "field"), text_at(cause, "message"))
            for cause in list_at(status, "details", "causes")
        )
        self.retry_after = int(at(status, "details", "retryAfterSeconds") or 0)

    @property
    def is_missing(self) -> bool:
        """Reports whether the object, or its kind, does not exist."""
        return self.code == 404

    @property
    def is_conflict(self) -> bool:
        """Reports whether somebody else owns a field or changed the object meanwhile."""
        return self.code == 409 and self.reason == "Conflict"

    @property
    def is_taken(self) -> bool:
        """Reports whether an object of that name exists."""
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def is_malformed(self) -> bool:
        """Reports whether the object does not fit its kind, which servers tell as their failure."""
        return self.code == 500 and any(words in self.message for words in _MALFORMED)

    @property
    def is_immutable(self) -> bool:
        """Reports whether a field was to change that cannot."""
        return self.code == 422 and any("immutable" in message for _, message in self.causes)
