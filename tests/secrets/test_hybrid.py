# SPDX-License-Identifier: Apache-2.0
"""Secrets for one piped, in the form that upstream reads and writes."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.model.errors import UserMistake
from pipecd.secrets import hybrid
from pipecd.secrets.binding import Binding

VECTORS = Path(__file__).parent.parent / "spec" / "vectors"
PRIVATE = (VECTORS / "secret_private.pem").read_bytes()
PUBLIC = (VECTORS / "secret_public.pem").read_bytes()
PAIRS = json.loads((VECTORS / "secret_hybrid.json").read_text())
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: repr(p["plaintext"]))
def test_secrets_of_upstream_are_read(pair: Any) -> None:
    assert hybrid.decrypt(PRIVATE, pair["ciphertext"]) == pair["plaintext"]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: repr(p["plaintext"]))
def test_our_secrets_have_the_format_of_upstream_and_can_be_decrypted(pair: Any) -> None:
    text = hybrid.encrypt(PUBLIC, pair["plaintext"])
    ours, theirs = base64.b64decode(text), base64.b64decode(pair["ciphertext"])
    assert len(ours) == len(theirs)
    assert ours[:2] == theirs[:2] == b"\x01\x00"
    assert ours[2:] != theirs[2:]
    assert hybrid.decrypt(PRIVATE, text) == pair["plaintext"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=20, deadline=None)
def test_any_text_is_decrypted_unchanged(text: str) -> None:
    assert hybrid.decrypt(PRIVATE, hybrid.encrypt(PUBLIC, text)) == text


def test_two_encryptions_differ() -> None:
    assert hybrid.encrypt(PUBLIC, "x") != hybrid.encrypt(PUBLIC, "x")


def test_line_breaks_and_space_around_a_key_are_harmless() -> None:
    text = hybrid.encrypt(b"\n  " + PUBLIC + b"\n\n", "x")
    folded = "\r\n".join(text[i : i + 60] for i in range(0, len(text), 60))
    assert hybrid.decrypt(b"\n" + PRIVATE + b" \n", folded) == "x"


def altered(position: int) -> str:
    raw = bytearray(base64.b64decode(PAIRS[0]["ciphertext"]))
    raw[position] ^= 1
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        pytest.param("not base64!", "it is not base64", id="no base64"),
        pytest.param("é", "it is not base64", id="no ASCII"),
        pytest.param(PAIRS[0]["ciphertext"] + " ", "it is not base64", id="a space at the end"),
        pytest.param("", "data is too short", id="nothing"),
        pytest.param("AQ==", "data is too short", id="one byte"),
        pytest.param("AQAB", "data is too short", id="a cut key"),
        pytest.param(PAIRS[0]["ciphertext"][:344], "it has been altered", id="no tag"),
        pytest.param(altered(10), "another key, or has been altered", id="an altered key"),
        pytest.param(altered(-20), "read: it has been altered", id="an altered text"),
        pytest.param(altered(-1), "read: it has been altered", id="an altered tag"),
    ],
)
def test_invalid_ciphertext_is_reported(text: str, error_text: str) -> None:
    with pytest.raises(UserMistake, match=error_text):
        hybrid.decrypt(PRIVATE, text)


def test_another_key_cannot_read_it() -> None:
    pem = OTHER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(UserMistake, match="another key"):
        hybrid.decrypt(pem, PAIRS[0]["ciphertext"])


EC = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    ("pem", "error_text"),
    [
        pytest.param(b"", "is not a PEM block named PUBLIC KEY", id="empty"),
        pytest.param(PRIVATE, "is not a PEM block named PUBLIC KEY", id="the private key"),
        pytest.param(
            OTHER.public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1),
            "is not a PEM block named PUBLIC KEY",
            id="PKCS#1",
        ),
        pytest.param(
            EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "is not an RSA key",
            id="an elliptic curve",
        ),
        pytest.param(PUBLIC[:100], "cannot be read", id="a cut block"),
    ],
)
def test_a_wrong_public_key_is_reported(pem: bytes, error_text: str) -> None:
    with pytest.raises(UserMistake, match=error_text):
        hybrid.encrypt(pem, "x")


@pytest.mark.parametrize(
    ("pem", "error_text"),
    [
        pytest.param(PUBLIC, "is not a PEM block named PRIVATE KEY", id="the public key"),
        pytest.param(
            OTHER.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
            "is not a PEM block named PRIVATE KEY",
            id="PKCS#1",
        ),
        pytest.param(
            EC.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            "is not an RSA key",
            id="an elliptic curve",
        ),
        pytest.param(PRIVATE[:200], "cannot be read", id="a cut block"),
    ],
)
def test_a_wrong_private_key_is_reported(pem: bytes, error_text: str) -> None:
    with pytest.raises(UserMistake, match=error_text):
        hybrid.decrypt(pem, PAIRS[0]["ciphertext"])


CART = Binding("shop", "site", "cart/app.pipecd.yaml")


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=20, deadline=None)
def test_a_bound_secret_is_decrypted_unchanged(text: str) -> None:
    encrypted = hybrid.encrypt(PUBLIC, text, binding=CART)
    assert hybrid.decrypt(PRIVATE, encrypted, binding=CART) == text


def test_a_bound_secret_may_have_line_breaks() -> None:
    text = hybrid.encrypt(PUBLIC, "x", binding=CART)
    folded = "\r\n".join(text[i : i + 60] for i in range(0, len(text), 60))
    assert hybrid.decrypt(PRIVATE, folded, binding=CART) == "x"


def test_a_bound_secret_needs_its_binding() -> None:
    with pytest.raises(UserMistake, match="it is bound to the file of an application"):
        hybrid.decrypt(PRIVATE, hybrid.encrypt(PUBLIC, "x", binding=CART))


def test_the_error_of_a_bound_secret_names_the_file_that_it_is_in() -> None:
    text = hybrid.encrypt(PUBLIC, "hunter22", binding=CART)
    with pytest.raises(UserMistake) as caught:
        hybrid.decrypt(PRIVATE, text, binding=Binding("shop", "site", "web/app.pipecd.yaml"))
    assert "another file than web/app.pipecd.yaml in repository site" in caught.value.message
    assert "hunter22" not in str(caught.value)
