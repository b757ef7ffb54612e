# SPDX-License-Identifier: Apache-2.0
"""Values that the control plane encrypts in its own database."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.errors import UserMistake
from pipecd.secrets.keyfile import KeyFile

VECTORS = Path(__file__).parent.parent / "spec" / "vectors"
CONTENT = (VECTORS / "encryption_key_file").read_bytes()
PAIRS = json.loads((VECTORS / "controlplane_aes.json").read_text())


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: repr(p["plaintext"]))
def test_values_of_upstream_are_read(pair: Any) -> None:
    assert KeyFile(CONTENT).decrypt(pair["ciphertext"]) == pair["plaintext"]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: repr(p["plaintext"]))
def test_our_values_have_the_length_of_upstream_and_can_be_decrypted(pair: Any) -> None:
    text = KeyFile(CONTENT).encrypt(pair["plaintext"])
    assert len(text) == len(pair["ciphertext"])
    assert text != KeyFile(CONTENT).encrypt(pair["plaintext"])
    assert KeyFile(CONTENT).decrypt(text) == pair["plaintext"]


def test_only_the_first_32_bytes_are_the_key() -> None:
    text = KeyFile(CONTENT[:32]).encrypt("x")
    assert KeyFile(CONTENT).decrypt(text) == "x"


def test_a_short_key_file_is_refused() -> None:
    with pytest.raises(UserMistake, match="has 31 bytes and needs at least 32"):
        KeyFile(CONTENT[:31])


def test_the_key_is_not_shown() -> None:
    assert CONTENT[:8].decode() not in repr(KeyFile(CONTENT)) + str(vars(KeyFile(CONTENT)))


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        pytest.param("", "it is too short", id="nothing"),
        pytest.param("YWJj", "it is too short", id="less than a nonce"),
        pytest.param(base64.b64encode(bytes(27)).decode(), "it is too short", id="no whole tag"),
        pytest.param("?", "it is not base64", id="no base64"),
        pytest.param(base64.b64encode(bytes(28)).decode(), "with another key", id="zeros"),
    ],
)
def test_invalid_ciphertext_is_reported(text: str, error_text: str) -> None:
    with pytest.raises(UserMistake, match=error_text):
        KeyFile(CONTENT).decrypt(text)


def test_another_key_file_cannot_read_it() -> None:
    with pytest.raises(UserMistake, match="with another key"):
        KeyFile(bytes(32)).decrypt(PAIRS[0]["ciphertext"])
