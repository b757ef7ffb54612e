# SPDX-License-Identifier: Apache-2.0
"""The requests to Datadog's API; keys do not appear in errors."""

import base64
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.plugins.analysis.config import ProviderConfig
from pipecd.plugins.analysis.datadog import DatadogProvider
from pipecd.plugins.analysis.provider_client import NoData, Point, Window
from pipecd.sdk import Unavailable, UserMistake
from plugins.analysis.conftest import Serve

KEYS = {
    "api_key_data": base64.b64encode(b"api-secret").decode(),
    "application_key_data": base64.b64encode(b"app-secret").decode(),
}


async def test_points_of_all_series_without_gaps(serve: Serve, client: httpx2.AsyncClient) -> None:
    series = [
        {"pointlist": [[1_700_000_000_000, 1.5], [1_700_000_060_000, None]]},
        {"pointlist": [[1_700_000_060_000, 2]]},
    ]
    with serve(lambda _: (200, {"status": "ok", "series": series})) as server:
        provider = DatadogProvider(client, ProviderConfig(address=server.address, **KEYS))
        points = await provider.points("avg:errors{*}", Window(1_699_999_940.9, 1_700_000_060.2))
    assert points == [Point(1_700_000_000, 1.5), Point(1_700_000_060, 2.0)]
    [request] = server.requests
    assert (request.method, request.path) == ("GET", "/api/v1/query")
    assert request.fields == {
        "query": ["avg:errors{*}"], "from": ["1699999940"], "to": ["1700000060"]
    }  # fmt: skip
    assert request.headers["dd-api-key"] == "api-secret"
    assert request.headers["dd-application-key"] == "app-secret"


async def test_keys_may_be_in_files(
    serve: Serve, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    (tmp_path / "api").write_text("one\n")
    (tmp_path / "app").write_text("two\n")
    with serve(lambda _: (200, {"status": "ok", "series": []})) as server:
        config = ProviderConfig(
            address=server.address,
            api_key_file=str(tmp_path / "api"),
            application_key_file=str(tmp_path / "app"),
        )
        assert await DatadogProvider(client, config).points("q", Window(0, 1)) == []
    assert server.requests[0].headers["dd-api-key"] == "one"
    assert server.requests[0].headers["dd-application-key"] == "two"


@pytest.mark.parametrize(
    ("site", "url"),
    [
        pytest.param("", "https://api.datadoghq.com/api/v1/query", id="the default site"),
        pytest.param("datadoghq.eu", "https://api.datadoghq.eu/api/v1/query", id="another site"),
        pytest.param("http://proxy:1/", "http://proxy:1/api/v1/query", id="a proxy"),
    ],
)
def test_the_address(client: httpx2.AsyncClient, site: str, url: str) -> None:
    assert DatadogProvider(client, ProviderConfig(address=site, **KEYS))._url == url


ERRORS = [
    pytest.param((403, {"errors": ["Forbidden"]}), "status 403: Forbidden", id="a wrong key"),
    pytest.param((200, {"status": "error", "error": "Rule 'x' is wrong"}), "Rule 'x' is wrong", id="a wrong query"),
    pytest.param((500, "oops"), "status 500", id="a failing server"),
    pytest.param((200, {"status": "ok", "series": [{}]}), "not a list of series", id="a series without points"),
    pytest.param((200, {"status": "ok", "series": [{"pointlist": [[1]]}]}), "not a list of series", id="half a point"),
]  # fmt: skip


@pytest.mark.parametrize(("response", "message"), ERRORS)
async def test_an_error_response_raises_without_keys(
    serve: Serve, client: httpx2.AsyncClient, response: tuple[int, Any], message: str
) -> None:
    with serve(lambda _: response) as server:
        provider = DatadogProvider(client, ProviderConfig(address=server.address, **KEYS))
        with pytest.raises(Unavailable, match=message) as raised:
            await provider.points("q", Window(0, 1))
    assert "secret" not in str(raised.value)


async def test_a_series_without_points_is_no_data(serve: Serve, client: httpx2.AsyncClient) -> None:
    with serve(lambda _: (200, {"status": "ok", "series": [{"pointlist": []}]})) as server:
        provider = DatadogProvider(client, ProviderConfig(address=server.address, **KEYS))
        with pytest.raises(NoData):
            await provider.points("q", Window(0, 1))


def test_a_key_that_is_not_base64_is_not_quoted(client: httpx2.AsyncClient) -> None:
    config = ProviderConfig(**{**KEYS, "api_key_data": "not base64!"})
    with pytest.raises(UserMistake, match=r"^apiKeyData is not base64$"):
        DatadogProvider(client, config)
