# SPDX-License-Identifier: Apache-2.0
"""A request that a page of another site made is told from all others."""

import pytest

from pipecd.controlplane.auth.origin import is_foreign


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        pytest.param({}, False, id="a program says nothing"),
        pytest.param({"sec-fetch-site": "same-origin"}, False, id="a script of our own page"),
        pytest.param({"sec-fetch-site": "none"}, False, id="an address that was typed"),
        pytest.param({"sec-fetch-site": "cross-site"}, True, id="a page of another site"),
        pytest.param({"sec-fetch-site": "same-site"}, True, id="a page of a sibling domain"),
        pytest.param(
            {
                "sec-fetch-site": "same-origin",
                "origin": "https://cd.example",
                "host": "server:9082",
            },
            False,
            id="our own page behind a proxy that changes the host",
        ),
        pytest.param(
            {"origin": "https://cd.example", "host": "cd.example"}, False, id="an older browser"
        ),
        pytest.param(
            {"origin": "https://cd.example", "host": "cd.example:443"}, False, id="the usual port"
        ),
        pytest.param(
            {"origin": "http://cd.example", "host": "server", "x-forwarded-host": "cd.example"},
            False,
            id="an older browser behind a proxy that says so",
        ),
        pytest.param(
            {"origin": "http://[::1]:8080", "host": "[::1]:8080"}, False, id="an address of IPv6"
        ),
        pytest.param(
            {"origin": "http://cd.example:8080", "host": "cd.example"}, True, id="another port"
        ),
        pytest.param(
            {"origin": "https://evil.example", "host": "cd.example"}, True, id="another host"
        ),
        pytest.param({"origin": "null", "host": "cd.example"}, True, id="a page without origin"),
        pytest.param({"origin": "", "host": ""}, True, id="an empty origin"),
        pytest.param({"origin": "http://a:b", "host": "a:b"}, True, id="a port that is no number"),
    ],
)
def test_a_request_with(headers: dict[str, str], foreign: bool) -> None:
    assert is_foreign(headers) is foreign
