# SPDX-License-Identifier: Apache-2.0
"""A key that stops working is read again, and asked about ever more rarely."""

import pytest
from structlog.testing import capture_logs

from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.wire.authorization import RenewableAuthorization


class Lock:
    """A key in a file and a clock, both set by hand."""

    def __init__(self) -> None:
        self.key = "one"
        self.seconds = 0.0

    def read(self) -> str:
        if not self.key:
            raise UserMistake("there is no file")
        return self.key

    def admission(self) -> RenewableAuthorization:
        return RenewableAuthorization(
            self.read,
            lambda: Unauthenticated("rejected"),
            clock=lambda: self.seconds,
            chance=lambda: 1.0,
        )


async def test_a_key_that_never_worked_is_told_at_once_and_every_time() -> None:
    admission = Lock().admission()
    for _ in range(3):
        assert isinstance(await admission.rejected("one"), Unauthenticated)
        admission.check()
    assert not admission.was_accepted


async def test_a_key_that_worked_is_asked_about_ever_more_rarely() -> None:
    lock = Lock()
    admission = lock.admission()
    admission.accepted()
    pauses: list[float] = []
    with capture_logs() as logs:
        for _ in range(7):
            assert await admission.rejected("one") is not None
            with pytest.raises(Unauthenticated):
                admission.check()
            began = lock.seconds
            while True:
                try:
                    admission.check()
                except Unauthenticated:
                    lock.seconds += 0.5
                else:
                    break
            pauses.append(lock.seconds - began)
        admission.accepted()
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    admission.check()
    assert [entry["event"] for entry in logs] == [
        "server rejects the key, retrying with backoff",
        "server accepts the key again",
    ]


async def test_a_new_key_is_used_at_once() -> None:
    lock = Lock()
    admission = lock.admission()
    admission.accepted()
    lock.key = "two"
    assert admission.authorization() == "one"
    assert await admission.rejected("one") is None
    assert admission.authorization() == "two"
    admission.check()
    # Others that were under way with the old key are no rejection of the new one.
    assert await admission.rejected("one") is None
    assert await admission.rejected("two") is not None


async def test_a_key_that_cannot_be_read_again_stays_what_it_was() -> None:
    lock = Lock()
    admission = lock.admission()
    admission.accepted()
    lock.key = ""
    assert await admission.rejected("one") is not None
    assert admission.authorization() == "one"
