# SPDX-License-Identifier: Apache-2.0
"""A request that a page of another site made is told from all others."""

import pytest

from pipecd.controlplane.auth.request_origin import client_address, is_cross_site, parse_networks
from pipecd.model.errors import UserMistake

OURS = parse_networks(["10.0.0.0/8", "::1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        pytest.param("1.2.3.4", "", "1.2.3.4", id="nobody stands between"),
        pytest.param("10.0.0.1", "1.2.3.4", "1.2.3.4", id="our proxy tells"),
        pytest.param("1.2.3.4", "9.9.9.9", "1.2.3.4", id="a stranger's word does not count"),
        pytest.param("10.0.0.1", "9.9.9.9, 1.2.3.4", "1.2.3.4", id="what came before our proxy"),
        pytest.param("10.0.0.1", "1.2.3.4, 10.9.9.9", "1.2.3.4", id="two proxies of ours"),
        pytest.param("10.0.0.1", "", "10.0.0.1", id="our proxy says nothing"),
        pytest.param("10.0.0.1", "unknown", "unknown", id="a proxy that tells no address"),
        pytest.param("10.0.0.1", "1.2.3.4, unknown", "unknown", id="nothing behind a riddle"),
        pytest.param("::1", " 2001:db8::7 ", "2001:db8::7", id="the newer protocol"),
        pytest.param("", "1.2.3.4", "", id="a peer without an address"),
    ],
)
def test_whom_a_request_comes_from(peer: str, forwarded: str, client: str) -> None:
    assert client_address(peer, forwarded, OURS) == client


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert client_address("10.0.0.1", "1.2.3.4", ()) == "10.0.0.1"


def test_a_network_that_is_none_is_told() -> None:
    with pytest.raises(UserMistake, match="invalid list of trusted proxies: 'ten'"):
        parse_networks(["ten"])


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
    assert is_cross_site(headers) is foreign
