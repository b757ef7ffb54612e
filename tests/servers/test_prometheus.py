# SPDX-License-Identifier: Apache-2.0
"""Prometheus returns the samples that a test has written."""

import time
from typing import Any

import httpx2
import pytest

from servers.prometheus import GuardedPrometheus, Prometheus


async def query_range(server: Prometheus, query: str, **rest: Any) -> Any:
    auth = (server.username, server.password) if server.username else None
    async with httpx2.AsyncClient(auth=auth) as http:
        range_ = {"query": query, **rest}
        reply = await http.get(f"{server.url}/api/v1/query_range", params=range_)
    return reply.json()["data"]["result"]


@pytest.mark.parametrize("name", ["prometheus", "guarded_prometheus"])
async def test_samples_of_the_past_are_there_at_once(
    request: pytest.FixtureRequest, name: str
) -> None:
    server: Prometheus = request.getfixturevalue(name)
    now = int(time.time())
    # First the present, then a day ago: any order will do.
    server.write("requests_total", {"app": "web"}, [(now - 30, 1.5), (now, 2.5)])
    server.write("requests_total", {"app": "web"}, [(now - 86400, 7.0)])
    recent = await query_range(
        server, 'requests_total{app="web"}', start=now - 30, end=now, step=30
    )
    assert [value for _, value in recent[0]["values"]] == ["1.5", "2.5"]
    past = await query_range(server, "requests_total", start=now - 86400, end=now - 86400, step=1)
    assert [value for _, value in past[0]["values"]] == ["7"]


async def test_requests_without_a_password_are_rejected(
    guarded_prometheus: GuardedPrometheus,
) -> None:
    async with httpx2.AsyncClient() as http:
        reply = await http.get(f"{guarded_prometheus.url}/api/v1/query", params={"query": "up"})
    assert reply.status_code == 401
