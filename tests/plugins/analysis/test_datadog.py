# SPDX-License-Identifier: Apache-2.0
"""Datadog is asked as its API wants it, with keys that nobody sees."""

import base64
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.plugins.analysis.config import ProviderConfig
from pipecd.plugins.analysis.datadog import DatadogProvider
from pipecd.plugins.analysis.provider_client import NoData, Point, Window
from pipecd.sdk import Unavailable, UserMistake

OpenWeb = Callable[..., AbstractAsyncContextManager[Any]]

KEYS = {
    "api_key_data": base64.b64encode(b"api-secret").decode(),
    "application_key_data": base64.b64encode(b"app-secret").decode(),
}


async def test_points_of_all_series_without_gaps(web: OpenWeb, client: httpx2.AsyncClient) -> None:
    series = [
        {"pointlist": [[1_700_000_000_000, 1.5], [1_700_000_060_000, None]]},
        {"pointlist": [[1_700_000_060_000, 2]]},
    ]
    async with web(lambda _: (200, {"status": "ok", "series": series})) as server:
        provider = DatadogProvider(client, ProviderConfig(address=server.url, **KEYS))
        found = await provider.points("avg:errors{*}", Window(1_699_999_940.9, 1_700_000_060.2))
    assert found == [Point(1_700_000_000, 1.5), Point(1_700_000_060, 2.0)]
    [asked] = server.asked
    assert (asked.method, asked.path) == ("GET", "/api/v1/query")
    assert asked.query == {"query": "avg:errors{*}", "from": "1699999940", "to": "1700000060"}
    assert asked.headers["dd-api-key"] == "api-secret"
    assert asked.headers["dd-application-key"] == "app-secret"


async def test_keys_may_be_in_files(
    web: OpenWeb, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "api").write_text("one\n")
    (tmp_path / "app").write_text("two\n")
    async with web(lambda _: (200, {"status": "ok", "series": []})) as server:
        config = ProviderConfig(
            address=server.url,
            api_key_file=str(tmp_path / "api"),
            application_key_file=str(tmp_path / "app"),
        )
        assert await DatadogProvider(client, config).points("q", Window(0, 1)) == []
    assert server.asked[0].headers["dd-api-key"] == "one"
    assert server.asked[0].headers["dd-application-key"] == "two"


@pytest.mark.parametrize(
    ("site", "url"),
    [
        pytest.param("", "https://api.datadoghq.com/api/v1/query", id="no site is the first one"),
        pytest.param("datadoghq.eu", "https://api.datadoghq.eu/api/v1/query", id="another site"),
        pytest.param("http://proxy:1/", "http://proxy:1/api/v1/query", id="a proxy of one's own"),
    ],
)
def test_the_address(client: httpx2.AsyncClient, site: str, url: str) -> None:
    assert DatadogProvider(client, ProviderConfig(address=site, **KEYS))._url == url


TROUBLE = [
    pytest.param((403, {"errors": ["Forbidden"]}), "status 403: Forbidden", id="a wrong key"),
    pytest.param((200, {"status": "error", "error": "Rule 'x' is wrong"}), "Rule 'x' is wrong", id="a wrong query"),
    pytest.param((500, "oops"), "status 500", id="a server in trouble"),
    pytest.param((200, {"status": "ok", "series": [{}]}), "not a list of series", id="a series without points"),
    pytest.param((200, {"status": "ok", "series": [{"pointlist": [[1]]}]}), "not a list of series", id="half a point"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "told"), TROUBLE)
async def test_trouble_is_told_without_keys(
    web: OpenWeb, client: httpx2.AsyncClient, answer: tuple[int, Any], told: str
) -> None:
    async with web(lambda _: answer) as server:
        provider = DatadogProvider(client, ProviderConfig(address=server.url, **KEYS))
        with pytest.raises(Unavailable, match=told) as raised:
            await provider.points("q", Window(0, 1))
    assert "secret" not in str(raised.value)


async def test_a_series_without_points_is_no_data(web: OpenWeb, client: httpx2.AsyncClient) -> None:
    async with web(lambda _: (200, {"status": "ok", "series": [{"pointlist": []}]})) as server:
        provider = DatadogProvider(client, ProviderConfig(address=server.url, **KEYS))
        with pytest.raises(NoData):
            await provider.points("q", Window(0, 1))


def test_a_key_that_is_not_base64_is_not_quoted(client: httpx2.AsyncClient) -> None:
    config = ProviderConfig(**{**KEYS, "api_key_data": "not base64!"})
    with pytest.raises(UserMistake, match=r"^apiKeyData is not base64$"):
        DatadogProvider(client, config)
