# SPDX-License-Identifier: Apache-2.0
"""How a cloud says no."""

from pipecd.model.errors import UserMistake


class Refusal(UserMistake):
    """The cloud understood the question and refused it; `code` is its own word for why."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
