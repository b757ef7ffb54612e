# SPDX-License-Identifier: Apache-2.0
"""Signals survive the way between processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.bus.encoding import EVERYTHING, decode_signal, encode_signal
from pipecd.controlplane.bus.signal import Signal, Topic

Signals = st.builds(Signal, st.sampled_from(Topic), st.text(), st.text(), st.text())


@given(Signals)
def test_a_signal_comes_back(signal: Signal) -> None:
    assert decode_signal(encode_signal(signal)) == signal


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"{}", id="no list"),
        pytest.param(b'["deployment","d","p"]', id="too short"),
        pytest.param(b'["deployment","d","p",1]', id="a number for a text"),
        pytest.param(b'["of a newer replica","d","p",""]', id="an unknown topic"),
        pytest.param(b"[" * 100_000, id="a pit of brackets"),
    ],
)
def test_what_cannot_be_understood_means_everything(message: bytes) -> None:
    assert decode_signal(message) == EVERYTHING


@given(st.binary())
def test_no_message_breaks_the_reader(message: bytes) -> None:
    decode_signal(message)
