# SPDX-License-Identifier: Apache-2.0
"""The client address behind proxies, and the detection of cross-site requests."""

import pytest

from pipecd.controlplane.auth.request_origin import (
    client_address,
    is_cross_site,
    parse_trusted_proxies,
)
from pipecd.model.errors import UserMistake

OURS = parse_trusted_proxies(["10.0.0.0/8", "::1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        pytest.param("1.2.3.4", "", "1.2.3.4", id="no proxy"),
        pytest.param("10.0.0.1", "1.2.3.4", "1.2.3.4", id="a trusted proxy"),
        pytest.param("1.2.3.4", "9.9.9.9", "1.2.3.4", id="an untrusted peer"),
        pytest.param(
            "10.0.0.1", "9.9.9.9, 1.2.3.4", "1.2.3.4", id="an untrusted entry before the client"
        ),
        pytest.param("10.0.0.1", "1.2.3.4, 10.9.9.9", "1.2.3.4", id="two trusted proxies"),
        pytest.param("10.0.0.1", "", "10.0.0.1", id="a trusted proxy without the header"),
        pytest.param("10.0.0.1", "unknown", "unknown", id="an entry that is not an address"),
        pytest.param(
            "10.0.0.1",
            "1.2.3.4, unknown",
            "unknown",
            id="nothing before an entry that is not an address",
        ),
        pytest.param("::1", " 2001:db8::7 ", "2001:db8::7", id="IPv6"),
        pytest.param("", "1.2.3.4", "", id="a peer without an address"),
    ],
)
def test_the_client_address(peer: str, forwarded: str, client: str) -> None:
    assert client_address(peer, forwarded, OURS) == client


def test_without_trusted_proxies_the_header_is_ignored() -> None:
    assert client_address("10.0.0.1", "1.2.3.4", ()) == "10.0.0.1"


def test_an_invalid_network_is_reported() -> None:
    with pytest.raises(UserMistake, match="invalid list of trusted proxies: 'ten'"):
        parse_trusted_proxies(["ten"])


@pytest.mark.parametrize(
    ("headers", "cross_site"),
    [
        pytest.param({}, False, id="no headers"),
        pytest.param({"sec-fetch-site": "same-origin"}, False, id="same origin"),
        pytest.param({"sec-fetch-site": "none"}, False, id="a URL typed by the user"),
        pytest.param({"sec-fetch-site": "cross-site"}, True, id="another site"),
        pytest.param({"sec-fetch-site": "same-site"}, True, id="another origin of the same site"),
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
        pytest.param({"origin": "null", "host": "cd.example"}, True, id="an opaque origin"),
        pytest.param({"origin": "", "host": ""}, True, id="an empty origin"),
        pytest.param({"origin": "http://a:b", "host": "a:b"}, True, id="an invalid port"),
    ],
)
def test_whether_a_request_is_cross_site(headers: dict[str, str], cross_site: bool) -> None:
    assert is_cross_site(headers) is cross_site
