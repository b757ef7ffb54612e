# SPDX-License-Identifier: Apache-2.0
"""Providers by name, and the requests of HTTP checks."""

import asyncio
from typing import Any

import httpx2
import pytest

from pipecd.plugins.analysis.config import AnalysisProvider, HttpCheck, HttpHeader, ProviderConfig
from pipecd.plugins.analysis.datadog import DatadogProvider
from pipecd.plugins.analysis.prometheus import PrometheusProvider
from pipecd.plugins.analysis.provider_client import request_status
from pipecd.plugins.analysis.providers import ProviderRegistry
from pipecd.plugins.analysis.stackdriver import StackdriverProvider
from pipecd.sdk import Duration, Unavailable, UserMistake
from plugins.analysis.conftest import Serve

PROVIDERS = (
    AnalysisProvider(name="p", type="PROMETHEUS", config=ProviderConfig(address="http://first")),
    AnalysisProvider(name="p", type="PROMETHEUS", config=ProviderConfig(address="http://second")),
    AnalysisProvider(
        name="d", type="DATADOG", config=ProviderConfig(api_key_data="YQ==", application_key_data="YQ==")
    ),
    AnalysisProvider(name="s", type="STACKDRIVER"),
)  # fmt: skip


def test_the_registry_returns_a_provider_by_name(client: httpx2.AsyncClient) -> None:
    providers = ProviderRegistry(client, PROVIDERS)
    first = providers.metrics("p")
    assert isinstance(first, PrometheusProvider)
    assert first._url.startswith("http://first/"), "the first of a name counts"
    assert isinstance(providers.metrics("d"), DatadogProvider)
    assert isinstance(providers.metrics("s"), StackdriverProvider)
    assert isinstance(providers.logs("s"), StackdriverProvider)


def test_an_unknown_or_unsuitable_provider_is_refused(client: httpx2.AsyncClient) -> None:
    with pytest.raises(UserMistake, match=r"unknown provider name x; .*defined there: p, p, d, s"):
        ProviderRegistry(client, PROVIDERS).metrics("x")
    with pytest.raises(UserMistake, match="defined there: none"):
        ProviderRegistry(client, ()).logs("x")
    with pytest.raises(UserMistake, match="provider d is of type DATADOG, which has no logs"):
        ProviderRegistry(client, PROVIDERS).logs("d")


def http_check(url: str, **changes: Any) -> HttpCheck:
    return HttpCheck(url=url, interval=Duration(1), expected_code=200, **changes)


async def test_a_request_has_the_method_and_headers_of_the_check(
    serve: Serve, client: httpx2.AsyncClient
) -> None:
    with serve(lambda _: (204, "")) as server:
        headers = (HttpHeader(key="X-Who", value="me"), HttpHeader(key="X-Who", value="you"))
        check = http_check(f"{server.address}/health?deep=1", method="HEAD", headers=headers)
        assert await request_status(client, check) == 204
        assert await request_status(client, http_check(server.address)) == 204
    assert (server.requests[0].method, server.requests[0].target) == ("HEAD", "/health?deep=1")
    assert server.requests[0].headers["x-who"] == "you", "a header is set, not repeated"
    assert server.requests[1].method == "GET"


async def test_a_redirect_is_followed(serve: Serve, client: httpx2.AsyncClient) -> None:
    with serve(lambda request: (302, "/there") if request.path == "/" else (418, "")) as server:
        assert await request_status(client, http_check(server.address)) == 418


async def test_the_body_of_a_response_is_not_read(client: httpx2.AsyncClient) -> None:
    async def respond_endlessly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            writer.close()

    async with (
        await asyncio.start_server(respond_endlessly, "127.0.0.1", 0) as server,
        asyncio.timeout(5),
    ):
        port = server.sockets[0].getsockname()[1]
        assert await request_status(client, http_check(f"http://127.0.0.1:{port}")) == 200


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param("http://me:secret@127.0.0.1:1/", "127.0.0.1:1", id="a refused connection"),
        pytest.param("ftp://host/", "host", id="a scheme of another protocol"),
        pytest.param("no url", "an address without a host", id="no address at all"),
        pytest.param("http://[bad", "an address", id="a broken address"),
    ],
)
async def test_an_unreachable_address_is_named_without_its_password(
    client: httpx2.AsyncClient, url: str, message: str
) -> None:
    with pytest.raises(Unavailable, match=f"cannot reach {message}") as raised:
        await request_status(client, http_check(url))
    assert "secret" not in str(raised.value)
