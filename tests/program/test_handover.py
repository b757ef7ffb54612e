# SPDX-License-Identifier: Apache-2.0
"""The conversation between the launcher and a piped that it starts."""

import asyncio
import os

import pytest

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.program.handover import (
    LauncherConnection,
    Phase,
    PipedConnection,
    PipedReport,
    StartOrder,
)


def connect() -> tuple[PipedConnection, LauncherConnection]:
    """Both ends in this process; that of piped has its own descriptor, as if it was inherited."""
    launcher = PipedConnection()
    piped = LauncherConnection(os.dup(launcher.descriptor))
    launcher.close_descriptor()
    return launcher, piped


async def test_reports_arrive_in_order_until_the_piped_ends() -> None:
    launcher, piped = connect()
    reports = [
        PipedReport(Phase.CHECKING, "the plugins"),
        PipedReport(Phase.READY, has_lease=True, usable=("a", "a/x"), unusable={"b": "no\nway"}),
    ]
    for report in reports:
        piped.report(report)
    piped.close()
    assert [report async for report in launcher.reports()] == reports
    launcher.send_order(StartOrder.START)
    launcher.close()


async def test_what_a_later_version_says_is_ignored() -> None:
    launcher, piped = connect()
    lines = [b'{"phase": "dancing"}', b"[]", b"{", b'{"phase": "ready", "mood": "good"}']
    for line in lines:
        piped.send(line)
    piped.close()
    assert [report async for report in launcher.reports()] == [PipedReport(Phase.READY)]
    launcher.close()


async def test_an_order_that_was_sent_before_the_start_needs_no_waiting() -> None:
    launcher, piped = connect()
    assert piped.received_order() is None
    launcher.send_order(StartOrder.START)
    assert piped.received_order() is StartOrder.START
    piped.close()
    launcher.close()


async def test_a_piped_waits_for_its_order() -> None:
    launcher, piped = connect()
    waiting = asyncio.create_task(piped.wait_for_order())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    launcher.send_order(StartOrder.TAKE_OVER)
    assert await waiting is StartOrder.TAKE_OVER
    piped.close()
    launcher.close()


async def test_a_piped_does_not_start_without_its_launcher() -> None:
    launcher, piped = connect()
    launcher.close()
    with pytest.raises(PipecdError, match="the launcher ended"):
        await piped.wait_for_order()
    piped.report(PipedReport(Phase.FAILED, "nobody hears it"))
    piped.close()


def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    with pytest.raises(UserMistake, match="--handover-fd: 987 is no open socket"):
        LauncherConnection(987)
