# SPDX-License-Identifier: Apache-2.0
"""Keys of pipeds and programs, and passwords."""

import json
import re
from pathlib import Path

import pytest

from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.model.ids import new_id
from pipecd.secrets import keys

AUTH = json.loads((Path(__file__).parent.parent / "spec" / "vectors" / "auth.json").read_text())
PIPED_HASH = AUTH["piped_key"]["hash"]


@pytest.fixture(autouse=True)
def quick_hashes() -> None:
    """Hashes keys at their real cost here."""


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        pytest.param(AUTH["piped_key"]["key"], PIPED_HASH, id="a piped key"),
        pytest.param(AUTH["api_key"]["key"], AUTH["api_key"]["key_hash"], id="an API key"),
        pytest.param(
            AUTH["static_admin"]["password"], AUTH["static_admin"]["password_hash"], id="a password"
        ),
    ],
)
def test_hashes_of_upstream_match_their_keys_only(key: str, hashed: str) -> None:
    assert keys.key_matches(key, hashed)
    assert not keys.key_matches(key + "x", hashed)
    assert not keys.key_matches("", hashed)


def test_our_hash_has_the_form_of_upstream_and_matches() -> None:
    hashed = keys.hash_key("secret")
    assert hashed.startswith("$2a$10$")
    assert len(hashed) == len(PIPED_HASH)
    assert hashed != keys.hash_key("secret")
    assert keys.key_matches("secret", hashed)
    assert keys.key_matches("secret", hashed.replace("$2a$", "$2b$"))
    assert not keys.key_matches("Secret", hashed)


def test_a_long_key_is_not_hashed_but_compared_by_its_beginning() -> None:
    longest = "k" * 72
    hashed = keys.hash_key(longest)
    assert keys.key_matches(longest + "more", hashed)
    assert not keys.key_matches("k" * 71, hashed)
    with pytest.raises(UserMistake, match="has 73 bytes and may have 72"):
        keys.hash_key(longest + "k")
    with pytest.raises(UserMistake, match="has 75 bytes"):
        keys.hash_key("値" * 25)


@pytest.mark.parametrize("hashed", ["", "redacted", "$2a$10$short", "é", PIPED_HASH[:-1]])
def test_an_invalid_hash_matches_no_key(hashed: str) -> None:
    assert not keys.key_matches(AUTH["piped_key"]["key"], hashed)


def test_a_text_that_cannot_be_encoded_matches_nothing() -> None:
    assert not keys.key_matches("\ud800", PIPED_HASH)


def test_new_keys_have_the_length_and_alphabet_of_upstream() -> None:
    id = new_id()
    assert re.fullmatch(r"[a-z0-9]{50}", keys.new_piped_key())
    assert re.fullmatch(re.escape(id) + r"\.[a-z0-9]{32}", keys.new_api_key(id))
    assert len(keys.new_api_key(id)) == len(AUTH["api_key"]["key"])
    assert keys.new_secret(10) != keys.new_secret(10)
    assert set(keys.new_secret(5000)) == set("abcdefghijklmnopqrstuvwxyz0123456789")


def test_an_api_key_names_its_entity() -> None:
    assert keys.api_key_id(AUTH["api_key"]["key"]) == AUTH["api_key"]["id"]
    assert keys.api_key_id(keys.new_api_key("id")) == "id"


@pytest.mark.parametrize("key", ["", ".", "id", "id.", ".secret", "a.b.c"])
def test_an_api_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(Unauthenticated, match=r"^Unauthenticated$"):
        keys.api_key_id(key)
