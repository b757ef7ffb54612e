# SPDX-License-Identifier: Apache-2.0
"""The `state`, nonce and PKCE verifier of a sign-in with a provider."""

import base64
import hashlib
from datetime import timedelta

import pytest

from pipecd.model.clock import from_unix
from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.secrets.state import SignInSecrets, begin_sign_in, new_cookie, resume_sign_in

KEY, COOKIE, SHOP = "state key", "cookie of the browser", "project shop"
BEGUN = from_unix(1_800_000_000)
SIGN_IN = begin_sign_in(KEY, COOKIE, SHOP, BEGUN)


def resume(**changes: str) -> SignInSecrets:
    values = {"state": SIGN_IN.state, "key": KEY, "cookie": COOKIE, "bound_to": SHOP, **changes}
    return resume_sign_in(values.pop("state"), values.pop("key"), **values, now=BEGUN)


def test_the_same_browser_resumes_its_sign_in() -> None:
    assert resume() == SIGN_IN


def test_cookies_are_random() -> None:
    assert len({new_cookie() for _ in range(100)}) == 100
    assert len(new_cookie()) >= 43


def test_the_secrets_of_a_sign_in_do_not_reveal_each_other() -> None:
    state, nonce, verifier = SIGN_IN.state, SIGN_IN.nonce, SIGN_IN.code_verifier
    assert len({state.partition(".")[2], nonce, verifier, COOKIE}) == 4
    assert COOKIE not in state


def test_the_challenge_is_the_hash_of_the_verifier() -> None:
    verifier = SIGN_IN.code_verifier
    # The limits of RFC 7636.
    assert 43 <= len(verifier) <= 128
    padded = SIGN_IN.code_challenge + "="
    assert base64.urlsafe_b64decode(padded) == hashlib.sha256(verifier.encode()).digest()


@pytest.mark.parametrize(
    ("age", "accepted"),
    [
        pytest.param(timedelta(0), True, id="at once"),
        pytest.param(timedelta(minutes=30, seconds=-1), True, id="almost half an hour later"),
        pytest.param(timedelta(minutes=30), False, id="half an hour later"),
        pytest.param(timedelta(minutes=-1), True, id="a clock one minute behind"),
        pytest.param(timedelta(seconds=-61), False, id="a clock further behind"),
    ],
)
def test_a_state_is_accepted_for_half_an_hour(age: timedelta, accepted: bool) -> None:
    def resume_later() -> SignInSecrets:
        return resume_sign_in(SIGN_IN.state, KEY, cookie=COOKIE, bound_to=SHOP, now=BEGUN + age)

    if accepted:
        assert resume_later() == SIGN_IN
    else:
        with pytest.raises(Unauthenticated, match="Unauthorized access"):
            resume_later()


STARTED, _, MAC = SIGN_IN.state.partition(".")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"cookie": ""}, id="no cookie"),
        pytest.param({"cookie": "another cookie"}, id="another browser"),
        pytest.param({"bound_to": "project depot"}, id="another project"),
        pytest.param({"key": "another key"}, id="another key"),
        pytest.param({"key": ""}, id="no key"),
        pytest.param({"state": f"{int(STARTED) + 1}.{MAC}"}, id="a changed time"),
        pytest.param({"state": f"{STARTED}.{MAC[:-1]}"}, id="a truncated state"),
        pytest.param({"state": ""}, id="no state"),
        pytest.param({"state": MAC}, id="no time"),
        pytest.param({"state": f"é.{MAC}"}, id="no ASCII"),
        pytest.param({"state": f"{'9' * 5000}.{MAC}"}, id="a time beyond all time"),
        pytest.param({"cookie": COOKIE + "3:x", "bound_to": ""}, id="parts that are joined"),
    ],
)
def test_anything_else_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated, match="Unauthorized access"):
        resume(**changes)


def test_without_a_state_key_no_sign_in_begins() -> None:
    with pytest.raises(UserMistake, match="needs a state key"):
        begin_sign_in("", COOKIE, SHOP, BEGUN)
