# SPDX-License-Identifier: Apache-2.0
"""The `state` parameter of a sign-in with a provider."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from pipecd.model.clock import from_unix
from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.secrets.state import check_state, new_state

VECTOR = json.loads((Path(__file__).parent.parent / "spec" / "vectors" / "auth.json").read_text())[
    "sso_state"
]
KEY, STATE = VECTOR["state_key"], VECTOR["state_hex"]
MILLISECONDS = int(VECTOR["token"].rpartition(":")[2])
MADE = from_unix(0) + timedelta(milliseconds=MILLISECONDS)


def test_a_state_is_that_of_upstream_to_the_byte() -> None:
    assert new_state(KEY, MADE) == STATE
    assert bytes.fromhex(new_state(KEY, MADE)).decode() == VECTOR["token"]


def test_the_time_is_rounded_up_to_milliseconds() -> None:
    assert new_state(KEY, MADE - timedelta(microseconds=999)) == STATE
    assert new_state(KEY, MADE + timedelta(microseconds=1)) != STATE


@pytest.mark.parametrize(
    ("age", "accepted"),
    [
        pytest.param(timedelta(0), True, id="at once"),
        pytest.param(timedelta(hours=24) - timedelta(seconds=1), True, id="almost a day later"),
        pytest.param(timedelta(hours=24), False, id="a day later"),
        pytest.param(timedelta(minutes=-1), True, id="a clock one minute behind"),
        pytest.param(timedelta(seconds=-61), False, id="a clock further behind"),
    ],
)
def test_a_state_is_accepted_for_a_day(age: timedelta, accepted: bool) -> None:
    if accepted:
        check_state(STATE, KEY, cookie=STATE, now=MADE + age)
    else:
        with pytest.raises(Unauthenticated, match="Unauthorized access"):
            check_state(STATE, KEY, cookie=STATE, now=MADE + age)


FORGED = f"{VECTOR['token'].partition(':')[0]}:{MILLISECONDS + 1}".encode().hex()


@pytest.mark.parametrize(
    ("state", "cookie", "error_text"),
    [
        pytest.param(STATE, "", "Unauthorized access", id="no cookie"),
        pytest.param(
            STATE, new_state(KEY, from_unix(1)), "Unauthorized access", id="another browser"
        ),
        pytest.param(FORGED, FORGED, "Unauthorized access", id="a changed time"),
        pytest.param("é", "é", "Unauthorized access", id="no ASCII"),
        pytest.param("", "", "Failed to parse state", id="nothing"),
        pytest.param("xyz", "xyz", "Failed to parse state", id="no hex"),
        pytest.param("ff", "ff", "Failed to parse state", id="no text"),
        pytest.param(b"a:b".hex(), b"a:b".hex(), "Failed to parse state", id="no time"),
        pytest.param(
            b"a:99999999999999999999".hex(),
            b"a:99999999999999999999".hex(),
            "Failed to parse state",
            id="a time beyond all time",
        ),
    ],
)
def test_anything_else_is_refused(state: str, cookie: str, error_text: str) -> None:
    with pytest.raises(Unauthenticated, match=error_text):
        check_state(state, KEY, cookie=cookie, now=MADE)


def test_another_key_refuses_it() -> None:
    with pytest.raises(Unauthenticated):
        check_state(STATE, "another", cookie=STATE, now=MADE)


def test_without_a_state_key_no_user_signs_in() -> None:
    with pytest.raises(UserMistake, match="needs a state key"):
        new_state("", MADE)
    with pytest.raises(Unauthenticated):
        check_state(STATE, "", cookie=STATE, now=MADE)
