# SPDX-License-Identifier: Apache-2.0
"""Range queries to a Prometheus server, and its errors."""

import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.plugins.analysis.config import ProviderConfig
from pipecd.plugins.analysis.prometheus import PrometheusProvider
from pipecd.plugins.analysis.provider_client import NoData, Point, Window
from pipecd.sdk import Unavailable, UserMistake
from plugins.analysis.conftest import Serve
from servers.prometheus import GuardedPrometheus, Prometheus


async def test_every_point_of_every_series(
    prometheus: Prometheus, client: httpx2.AsyncClient
) -> None:
    now = int(time.time())
    prometheus.write("errors", {"pod": "a"}, [(now - 120, 1.0), (now - 60, 2.0), (now, 3.0)])
    prometheus.write("errors", {"pod": "b"}, [(now, 0.25)])
    provider = PrometheusProvider(client, ProviderConfig(address=f"{prometheus.url}/"))
    points = await provider.points("errors", Window(now - 120, now))
    assert points == [
        Point(now - 120, 1.0), Point(now - 60, 2.0), Point(now, 3.0), Point(now, 0.25)
    ]  # fmt: skip
    assert await provider.points("missing", Window(now - 120, now)) == []


async def test_a_short_window_has_its_two_ends(
    prometheus: Prometheus, client: httpx2.AsyncClient
) -> None:
    now = int(time.time())
    prometheus.write("short", {}, [(now - 2, 1.0), (now, 2.0)])
    provider = PrometheusProvider(client, ProviderConfig(address=prometheus.url))
    points = await provider.points("short", Window(now - 2, now))
    assert [point.value for point in points] == [1.0, 2.0]


async def test_nan_is_no_data(prometheus: Prometheus, client: httpx2.AsyncClient) -> None:
    now = time.time()
    provider = PrometheusProvider(client, ProviderConfig(address=prometheus.url))
    with pytest.raises(NoData, match="not a number"):
        await provider.points("vector(0) / 0", Window(now - 1, now))
    assert (await provider.points("vector(1) / 0", Window(now - 1, now)))[0].value == float("inf")


async def test_a_refused_query_raises_the_reason(
    prometheus: Prometheus, client: httpx2.AsyncClient
) -> None:
    provider = PrometheusProvider(client, ProviderConfig(address=prometheus.url))
    with pytest.raises(Unavailable, match=r"status 400: .*parse error: unclosed"):
        await provider.points("sum(", Window(0, 1))


async def test_a_password_is_read_from_files(
    guarded_prometheus: GuardedPrometheus, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    name, password = tmp_path / "name", tmp_path / "password"
    name.write_text(f"{guarded_prometheus.username}\n")
    password.write_text(f" {guarded_prometheus.password}\n")
    url, now = guarded_prometheus.url, time.time()
    config = ProviderConfig(address=url, username_file=str(name), password_file=str(password))
    assert await PrometheusProvider(client, config).points("vector(1)", Window(now - 1, now))
    only_a_name = ProviderConfig(address=url, username_file=str(name))
    with pytest.raises(Unavailable, match="status 401: the name or the password is wrong"):
        await PrometheusProvider(client, only_a_name).points("vector(1)", Window(now - 1, now))


def test_a_file_that_is_missing_is_named(client: httpx2.AsyncClient, tmp_path: Path) -> None:
    config = ProviderConfig(
        address="http://p", username_file=str(tmp_path / "no"), password_file="also"
    )
    with pytest.raises(UserMistake, match=f"usernameFile {tmp_path}/no cannot be read: No such"):
        PrometheusProvider(client, config)


async def test_a_proxy_that_refuses_post_receives_get(
    serve: Serve, client: httpx2.AsyncClient
) -> None:
    data = {"status": "success", "data": {"result": [{"values": [[1, "2"]]}]}}
    with serve(lambda request: (405, {}) if request.method == "POST" else (200, data)) as server:
        provider = PrometheusProvider(client, ProviderConfig(address=server.address))
        assert await provider.points("up", Window(10, 70.5)) == [Point(1, 2.0)]
    assert server.requests[1].fields == {
        "query": ["up"], "start": ["10.000"], "end": ["70.500"], "step": ["60.000"]
    }  # fmt: skip


ERRORS = [
    pytest.param((200, "<html>"), "status 200: it is not a JSON object", id="a page of a proxy"),
    pytest.param((502, "bad gateway"), "status 502", id="a proxy without a server"),
    pytest.param((200, {"status": "success", "data": {"result": [{}]}}), "not a range of points", id="a series without values"),
    pytest.param((200, {"status": "success", "data": {"result": [{"values": [[1]]}]}}), "not a range of points", id="a point without a value"),
    pytest.param((200, {"status": "success", "data": {"result": [{"values": []}]}}), "a series has no values", id="an empty series"),
]  # fmt: skip


@pytest.mark.parametrize(("response", "message"), ERRORS)
async def test_an_invalid_response_raises(
    serve: Serve, client: httpx2.AsyncClient, response: tuple[int, Any], message: str
) -> None:
    with serve(lambda _: response) as server:
        provider = PrometheusProvider(client, ProviderConfig(address=server.address))
        with pytest.raises((Unavailable, NoData), match=message):
            await provider.points("up", Window(0, 1))


async def test_an_unreachable_server_is_named_without_its_password(
    client: httpx2.AsyncClient,
) -> None:
    provider = PrometheusProvider(client, ProviderConfig(address="http://ann:sesame@127.0.0.1:1"))
    with pytest.raises(Unavailable, match=r"cannot reach 127\.0\.0\.1:1: ") as raised:
        await provider.points("up", Window(0, 1))
    assert "sesame" not in str(raised.value)
