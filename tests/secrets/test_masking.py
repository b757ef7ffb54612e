# SPDX-License-Identifier: Apache-2.0
"""Secrets are masked in any encoding and however the text is split."""

import base64
import json
import re
import textwrap
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.secrets.forms import is_too_short
from pipecd.secrets.masking import MASK, KnownSecrets, Masking

PASSWORD = 'hunter2&co\'s "best"/é'
PEM = f"-----BEGIN PRIVATE KEY-----\n{'MIIEvQIBADANBg+/' * 4}\n{'x7Kq' * 16}\n-----END PRIVATE KEY-----\n"
TOKEN = "".join(f"{n * 7919 % 4099:03x}" for n in range(1, 101))


@pytest.mark.parametrize(
    ("secrets", "text", "shown"),
    [
        pytest.param(["hunter22"], "a hunter22 b", f"a {MASK} b", id="a word"),
        pytest.param(["hunter22\n"], "hunter22", MASK, id="the newline of a file does not count"),
        pytest.param(["hunter22"], "hunter2", "hunter2", id="less than the secret is no secret"),
        pytest.param(["abc"], "abc", "abc", id="three characters are too short to be hidden"),
        pytest.param(["abcd"], "abcd", MASK, id="four characters are hidden"),
        pytest.param([""], "text", "text", id="nothing"),
        pytest.param(["abcd", "abcdefgh"], "abcdefgh", MASK, id="one begins with another"),
        pytest.param(["abcdef", "defghi"], "abcdefghi", MASK, id="two overlap"),
        pytest.param(["aaaa"], "aaaaaaa!", f"{MASK}!", id="one overlaps itself"),
        pytest.param(["hunter22"], "hunter22hunter22", MASK, id="twice in a row"),
        pytest.param(["hunter22"], "hunt\ner22", f"{MASK}\n{MASK}", id="a line break in it"),
        pytest.param(["hunter22"], "hunt\n \ner22", f"{MASK}\n \n{MASK}", id="an empty line in it"),
        pytest.param(["ab\ncd\nef"], "ab\ncd\nef", "\n".join([MASK] * 3), id="only short lines"),
        pytest.param(["ab\r\n\r\ncdef"], "ab\n\ncdef!", f"{MASK}\n\n{MASK}!", id="other line ends"),
        pytest.param(["ab\ncd\nef"], "cd", "cd", id="a short line of it alone is ordinary text"),
        pytest.param(
            ["first-line\n  second-line"], "+   second-line", f"+   {MASK}", id="a line in a diff"
        ),
        pytest.param(
            ["aHVudGVyMjItYW5kLWNv"], "hunter22-and-co", MASK, id="the text of a secret in base64"
        ),
        pytest.param(["0badcafe0badcafe"], "0BADCAFE0BADCAFE", MASK, id="hex in other letters"),
        pytest.param([TOKEN], f"x {TOKEN}", f"x {MASK}", id="a long one"),
        pytest.param([TOKEN], TOKEN[:200], MASK + TOKEN[183:200], id="a part of a long one"),
    ],
)  # fmt: skip
def test_a_secret_is_hidden(secrets: list[str], text: str, shown: str) -> None:
    assert Masking(secrets).hide(text) == shown


def bash_quoted(text: str) -> str:
    return text.replace("'", "'\\''")


def go_json(text: str) -> str:
    escaped = json.dumps(text, ensure_ascii=False)
    return escaped.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")[1:-1]


def small_escapes(text: str) -> str:
    return re.sub("%..", lambda escape: escape[0].lower(), text)


@pytest.mark.parametrize("secret", [PASSWORD, TOKEN, PEM], ids=["password", "token", "private key"])
@pytest.mark.parametrize(
    "written",
    [
        pytest.param(str, id="as it is"),
        pytest.param(bash_quoted, id="as a shell quotes it"),
        pytest.param(lambda s: json.dumps(s)[1:-1], id="in JSON"),
        pytest.param(lambda s: json.dumps({"a": json.dumps({"b": s})}), id="in JSON in JSON"),
        pytest.param(lambda s: json.dumps(s, ensure_ascii=False), id="in JSON of Unicode"),
        pytest.param(go_json, id="in JSON of Go"),
        pytest.param(quote, id="in a path"),
        pytest.param(lambda s: quote(s, safe=""), id="in a query"),
        pytest.param(
            lambda s: small_escapes(quote(s, safe="")), id="in a query with small letters"
        ),
        pytest.param(quote_plus, id="in a form"),
        pytest.param(lambda s: quote(s, safe="!'()*"), id="in an address of a browser"),
        pytest.param(lambda s: base64.b64encode(s.encode()).decode(), id="in base64"),
        pytest.param(
            lambda s: base64.encodebytes(s.encode()).decode(), id="in base64 of several lines"
        ),
        pytest.param(
            lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="), id="in a token"
        ),
        pytest.param(lambda s: s.encode().hex(), id="in hex"),
        pytest.param(lambda s: s.encode().hex().upper(), id="in hex of capitals"),
        pytest.param(lambda s: textwrap.fill(s.encode().hex(), 60), id="in hex of several lines"),
        pytest.param(lambda s: f"\\x{s.encode().hex()}", id="as a database prints bytes"),
        *(
            pytest.param(
                lambda s, n=n: base64.b64encode(f"{'u' * n}:{s}:".encode()).decode(),
                id=f"in base64 after {n + 1} bytes",
            )
            for n in range(3)
        ),
    ],
)
def test_a_secret_is_hidden_in_every_form(secret: str, written: Callable[[str], str]) -> None:
    text = written(secret)
    shown = Masking([secret]).hide(f"before {text} after")
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert MASK in shown
    shown_parts = {part for part in windows(shown, 6) if part.isalnum()}
    assert shown_parts & {*windows(text, 6)} == set()


def windows(text: str, length: int) -> list[str]:
    return [text[i : i + length] for i in range(len(text) - length + 1)]


LETTERS = st.text("abAB01", min_size=4, max_size=12)
WORDS = st.text("abAB01 ", max_size=6)


@given(
    secrets=st.lists(LETTERS, min_size=1, max_size=4), around=st.lists(WORDS, max_size=6), data=st.data()
)  # fmt: skip
@settings(deadline=None, max_examples=300)
def test_no_secret_survives_any_cutting(
    secrets: list[str], around: list[str], data: st.DataObject
) -> None:
    masking = Masking(secrets)
    text = "".join(
        data.draw(encodings)(data.draw(st.sampled_from(secrets))) + word for word in [*around, ""]
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, after = list[str](), ""
    while pieces:
        count = data.draw(st.integers(1, len(pieces)))
        request, pieces = pieces[:count], pieces[count:]
        shown += masking.hide_pieces(request, after=after, is_end=not pieces)
        after = masking.reach(after, *request)
    together = "".join(piece for piece in shown if piece.strip())
    for secret in secrets:
        assert secret not in together
        assert base64.b64encode(secret.encode()).decode() not in together


encodings = st.sampled_from(
    [
        lambda s: s,
        lambda s: base64.b64encode(s.encode()).decode(),
        lambda s: base64.urlsafe_b64encode(f"x{s}yz".encode()).decode(),
    ]
)


@given(st.lists(LETTERS, max_size=3), st.text("αβγ \t\n*%\\", max_size=40))
@settings(deadline=None)
def test_other_text_stays_as_it_is(secrets: list[str], text: str) -> None:
    assert Masking(secrets).hide(text) == text
    lines = text.split("\n")
    assert Masking(secrets).hide_pieces(lines, is_end=False) == lines


def test_an_end_that_may_become_a_secret_is_hidden_until_it_is_known() -> None:
    masking = Masking(["hunter22"])
    assert masking.hide_pieces(["my hunter"], is_end=False) == [f"my {MASK}"]
    assert masking.hide_pieces(["my hun"], is_end=False) == ["my hun"], "too short for a match"
    assert masking.hide_pieces(["my hunter"]) == ["my hunter"], "nothing follows"
    assert masking.hide_pieces(["my hunter", "s"], is_end=False) == ["my hunter", "s"]


def test_a_piece_may_have_several_lines() -> None:
    masking = Masking(["hunter22"])
    pieces = ["my hun\n\nter", "22\nis it\n", "hunt\n"]
    hidden = [f"my {MASK}\n\n{MASK}", f"{MASK}\nis it\n", f"{MASK}\n"]
    assert masking.hide_pieces(pieces, is_end=False) == hidden
    before = masking.reach(*pieces)
    assert masking.hide_pieces(["er22"], after=before) == [MASK]


def test_the_rest_of_a_secret_is_hidden_whatever_came_before() -> None:
    masking = Masking(["hunter22"])
    before = masking.reach("a long line", "my hunt")
    assert len(before) < len(b"hunter22".hex())
    assert masking.hide_pieces(["er22 is it"], after=before) == [f"{MASK} is it"]


def test_twenty_megabytes_and_hundreds_of_secrets_take_seconds() -> None:
    secrets = [f"secret-{n:04}-{n * 7919:08x}" for n in range(500)]
    line = "the quick brown fox jumps over the lazy dog 0123456789 " * 2
    text = "\n".join([line] * (2_000_000 // len(line)) + [secrets[400]])
    masking, started = Masking(secrets), time.process_time()
    assert masking.hide(text).endswith(f"\n{MASK}")
    assert time.process_time() - started < 2, "a tenth of it"


def test_a_secret_that_is_too_short_is_known_as_such() -> None:
    assert [is_too_short(each) for each in ("", " abc\n", "abcd")] == [True, True, False]


def test_the_oldest_of_many_secrets_are_forgotten() -> None:
    known = KnownSecrets(at_most=4)
    assert known.hide("anything") == "anything"
    for number in range(5):
        known.add([f"secret-{number}", "secret-0"])
    text = " ".join(f"secret-{number}" for number in range(5))
    assert known.hide(text) == f"{MASK} secret-1 secret-2 secret-3 {MASK}"
