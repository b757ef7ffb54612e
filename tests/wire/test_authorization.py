# SPDX-License-Identifier: Apache-2.0
"""A rejected key is read again from its file and retried with backoff."""

import pytest
from structlog.testing import capture_logs

from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.wire.authorization import RenewableAuthorization


class KeyFile:
    """A key in a file and a clock, both set by hand."""

    def __init__(self) -> None:
        self.key = "one"
        self.seconds = 0.0

    def read(self) -> str:
        if not self.key:
            raise UserMistake("there is no file")
        return self.key

    def authorization(self) -> RenewableAuthorization:
        return RenewableAuthorization(
            self.read,
            lambda: Unauthenticated("rejected"),
            clock=lambda: self.seconds,
            chance=lambda: 1.0,
        )


async def test_a_key_that_never_worked_is_reported_at_once_and_every_time() -> None:
    authorization = KeyFile().authorization()
    for _ in range(3):
        assert isinstance(await authorization.rejected("one"), Unauthenticated)
        authorization.check()
    assert not authorization.was_accepted


async def test_a_key_that_worked_is_retried_with_backoff() -> None:
    key_file = KeyFile()
    authorization = key_file.authorization()
    authorization.accepted()
    pauses: list[float] = []
    with capture_logs() as logs:
        for _ in range(7):
            assert await authorization.rejected("one") is not None
            with pytest.raises(Unauthenticated):
                authorization.check()
            began = key_file.seconds
            while True:
                try:
                    authorization.check()
                except Unauthenticated:
                    key_file.seconds += 0.5
                else:
                    break
            pauses.append(key_file.seconds - began)
        authorization.accepted()
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    authorization.check()
    assert [entry["event"] for entry in logs] == [
        "server rejects the key, retrying with backoff",
        "server accepts the key again",
    ]


async def test_a_new_key_is_used_at_once() -> None:
    key_file = KeyFile()
    authorization = key_file.authorization()
    authorization.accepted()
    key_file.key = "two"
    assert authorization.authorization() == "one"
    assert await authorization.rejected("one") is None
    assert authorization.authorization() == "two"
    authorization.check()
    # Others that were under way with the old key are no rejection of the new one.
    assert await authorization.rejected("one") is None
    assert await authorization.rejected("two") is not None


async def test_an_unreadable_key_file_leaves_the_key_unchanged() -> None:
    key_file = KeyFile()
    authorization = key_file.authorization()
    authorization.accepted()
    key_file.key = ""
    assert await authorization.rejected("one") is not None
    assert authorization.authorization() == "one"
