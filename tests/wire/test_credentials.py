# SPDX-License-Identifier: Apache-2.0
"""Credentials in the metadata of calls: API keys, piped tokens and session cookies."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.errors import Unauthenticated, UserMistake
from pipecd.wire import credentials
from pipecd.wire.credentials import Metadata, PipedToken

AUTH = json.loads((Path(__file__).parent.parent / "spec" / "vectors" / "auth.json").read_text())
PIPED = AUTH["piped_key"]
API = AUTH["api_key"]


def authorization(value: str | bytes) -> Metadata:
    return (("user-agent", "x"), ("authorization", value))


def test_the_token_of_a_piped_is_that_of_upstream() -> None:
    token = credentials.piped_token(PIPED["project_id"], PIPED["piped_id"], PIPED["key"] + "\n")
    assert token == PIPED["authorization"]
    assert credentials.parse_piped_token(authorization(token)) == PipedToken(
        PIPED["project_id"], PIPED["piped_id"], PIPED["key"]
    )


def test_the_api_key_is_sent_as_upstream_does() -> None:
    sent = credentials.api_key(f" {API['key']}\n")
    assert sent == API["authorization"]
    assert credentials.parse_api_key(authorization(sent)) == API["key"]


def test_the_key_of_a_piped_stays_out_of_logs() -> None:
    assert "secret" not in repr(PipedToken("p", "i", "secret"))


@pytest.mark.parametrize("key", ["a b", "a\nb", "é"])
def test_an_invalid_key_is_reported_without_showing_it(key: str) -> None:
    with pytest.raises(UserMistake, match="the piped key contains") as caught:
        credentials.piped_token("p", "i", key)
    assert key not in str(caught.value)


MALFORMED = "credentials is malformed"
REFUSED = "Unauthenticated"


@pytest.mark.parametrize(
    ("metadata", "error_text"),
    [
        pytest.param((), "missing credentials", id="no metadata"),
        pytest.param(
            (("user-agent", "x"),), "missing credentials in authorization", id="no authorization"
        ),
        pytest.param(authorization(""), MALFORMED, id="an empty value"),
        pytest.param(authorization("PIPED-TOKEN"), MALFORMED, id="one part"),
        pytest.param(authorization("PIPED-TOKEN "), MALFORMED, id="empty data"),
        pytest.param(authorization("PIPED-TOKEN a,b,c d"), MALFORMED, id="three parts"),
        pytest.param(authorization("PIPED-TOKEN  a,b,c"), MALFORMED, id="two spaces"),
        pytest.param(authorization("piped-token a,b,c"), MALFORMED, id="another case"),
        pytest.param(authorization("Bearer a,b,c"), MALFORMED, id="an unknown scheme"),
        pytest.param(authorization("API-KEY a.b"), REFUSED, id="the scheme of another server"),
        pytest.param(authorization("ID-TOKEN a"), REFUSED, id="an unknown scheme"),
        pytest.param(authorization("PIPED-TOKEN a,b"), REFUSED, id="two fields"),
        pytest.param(authorization("PIPED-TOKEN a,b,c,d"), REFUSED, id="four fields"),
        pytest.param(authorization("PIPED-TOKEN ,b,c"), REFUSED, id="no project"),
        pytest.param(authorization("PIPED-TOKEN a,,c"), REFUSED, id="no piped"),
        pytest.param(authorization("PIPED-TOKEN a,b,"), REFUSED, id="no key"),
    ],
)
def test_a_wrong_piped_token_is_refused_in_the_words_of_upstream(
    metadata: Any, error_text: str
) -> None:
    with pytest.raises(Unauthenticated) as caught:
        credentials.parse_piped_token(metadata)
    assert str(caught.value) == error_text


def test_only_the_first_value_counts() -> None:
    metadata = (("authorization", "API-KEY first"), ("authorization", "API-KEY second"))
    assert credentials.parse_api_key(metadata) == "first"


def test_a_piped_token_is_not_an_api_key() -> None:
    with pytest.raises(Unauthenticated, match=r"^Unauthenticated$"):
        credentials.parse_api_key(authorization("PIPED-TOKEN a,b,c"))


@pytest.mark.parametrize(
    ("cookie", "token"),
    [
        pytest.param("token=abc", "abc", id="alone"),
        pytest.param("a=b; token=x=y==; c=d", "x=y==", id="among others, with equal signs"),
        pytest.param("lonely; token=abc;", "abc", id="beside a part without an equal sign"),
        pytest.param("  token=abc  ", "abc", id="with white space around"),
    ],
)
def test_the_session_is_found_among_the_cookies(cookie: str, token: str) -> None:
    assert credentials.session_cookie((("cookie", cookie),)) == token
    assert credentials.session_cookie((("cookie", cookie.encode()),)) == token


@pytest.mark.parametrize("cookie", ["", ";", "token", "token=", "Token=x", "atoken=x", "=", "a=b"])
def test_without_a_session_cookie_a_call_is_unauthenticated(cookie: str) -> None:
    with pytest.raises(Unauthenticated, match=r"^Unauthenticated$"):
        credentials.session_cookie((("cookie", cookie),))


def test_without_any_cookie_a_call_is_unauthenticated() -> None:
    with pytest.raises(Unauthenticated, match=r"^Unauthenticated$"):
        credentials.session_cookie((("user-agent", "x"),))
