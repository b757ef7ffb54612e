# SPDX-License-Identifier: Apache-2.0
"""The message that a form leaves for the next page."""

import pytest

from pipecd.controlplane.console.flash import Flash, decode_flash, encode_flash

DELETED = Flash("cart “✓” is deleted.")
COOKIE = encode_flash(DELETED, "/applications", "token")


def test_the_page_of_the_redirect_shows_it() -> None:
    assert decode_flash(COOKIE, "/applications", "token") == DELETED


@pytest.mark.parametrize(
    ("value", "path", "token"),
    [
        pytest.param(COOKIE, "/deployments", "token", id="another page"),
        pytest.param(COOKIE, "/applications", "other", id="another session"),
        pytest.param("e30=.00", "/applications", "token", id="a forged one"),
        pytest.param(COOKIE[:-1], "/applications", "token", id="a damaged one"),
        pytest.param("x" * 100_000, "/applications", "token", id="a huge one"),
        pytest.param("é.é", "/applications", "token", id="no signature"),
    ],
)
def test_nothing_else_is_shown(value: str, path: str, token: str) -> None:
    assert decode_flash(value, path, token) is None


def test_a_long_text_fits_into_a_cookie() -> None:
    cookie = encode_flash(Flash("€" * 10_000), "/applications", "token")
    assert len(cookie) < 4000
    shown = decode_flash(cookie, "/applications", "token")
    assert shown
    assert shown.text.startswith("€€€")
