# SPDX-License-Identifier: Apache-2.0
"""Reads of an unavailable Git repository are retried; other errors are raised."""

import pytest

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.retry import retry_while_unavailable


async def test_a_repository_that_is_unavailable_is_read_again() -> None:
    attempts: list[int] = []

    async def read() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise Unavailable("connection refused")
        return "content"

    assert await retry_while_unavailable(read, repository="site", chance=lambda: -0.99) == "content"
    assert len(attempts) == 2


async def test_any_other_error_is_raised() -> None:
    async def read() -> None:
        raise UserMistake("no such file")

    with pytest.raises(UserMistake):
        await retry_while_unavailable(read, repository="site")
