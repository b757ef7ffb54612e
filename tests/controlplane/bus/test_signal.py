# SPDX-License-Identifier: Apache-2.0
"""Signals are encoded for other processes and decoded again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.bus.signal import (
    EVERYTHING,
    Signal,
    Topic,
    decode_signal,
    encode_signal,
)

Signals = st.builds(Signal, st.sampled_from(Topic), st.text(), st.text(), st.text())


@given(Signals)
def test_an_encoded_signal_decodes_to_itself(signal: Signal) -> None:
    assert decode_signal(encode_signal(signal)) == signal


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b"{}", id="not a list"),
        pytest.param(b'["deployment","d","p"]', id="too short"),
        pytest.param(b'["deployment","d","p",1]', id="a number instead of a string"),
        pytest.param(b'["of a newer replica","d","p",""]', id="an unknown topic"),
        pytest.param(b"[" * 100_000, id="deep nesting"),
    ],
)
def test_an_invalid_message_becomes_everything(message: bytes) -> None:
    assert decode_signal(message) == EVERYTHING


@given(st.binary())
def test_no_message_raises_an_error(message: bytes) -> None:
    decode_signal(message)
