# SPDX-License-Identifier: Apache-2.0
"""Prometheus, and other servers with its range queries."""

import math
from collections.abc import Sequence
from typing import Any

import httpx2

from pipecd.plugins.analysis.config import ProviderConfig
from pipecd.plugins.analysis.provider_client import (
    NoData,
    Point,
    Window,
    error_response,
    read_json_object,
    read_secret,
    send,
)
from pipecd.sdk import Unavailable

_STEP = 60.0
_SHORTEST_STEP = 0.001
# Some proxies allow only GET.
_POST_REFUSED = (405, 501)


class PrometheusProvider:
    """A Prometheus server, with basic auth if both files are set."""

    def __init__(self, client: httpx2.AsyncClient, config: ProviderConfig) -> None:
        self._client = client
        self._url = f"{config.address.rstrip('/')}/api/v1/query_range"
        self._options: dict[str, Any] = {}
        if config.username_file and config.password_file:
            name = read_secret(config.username_file, "usernameFile")
            self._options["auth"] = (name, read_secret(config.password_file, "passwordFile"))

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """Returns every point of every matching series."""
        return await query_range(self._client, self._url, query, window, **self._options)


async def query_range(
    client: httpx2.AsyncClient, url: str, query: str, window: Window, **options: Any
) -> Sequence[Point]:
    """Sends a range query with a step of a minute, or of the window if it is shorter."""
    parameters = {
        "query": query,
        "start": f"{window.start:.3f}",
        "end": f"{window.end:.3f}",
        "step": f"{max(min(_STEP, window.length), _SHORTEST_STEP):.3f}",
    }
    response = await send(client, "POST", url, data=parameters, **options)
    if response.status_code in _POST_REFUSED:
        response = await send(client, "GET", url, params=parameters, **options)
    if response.status_code == 401:
        raise error_response(response, url, "the name or the password is wrong")
    body = read_json_object(response, url)
    if body.get("status") != "success":
        raise error_response(response, url, body.get("error") or response.reason_phrase)
    try:
        return _points(body["data"])
    except (KeyError, TypeError, ValueError) as e:
        raise Unavailable(f"the response to {query} is not a range of points") from e


def _points(data: Any) -> list[Point]:
    points: list[Point] = []
    for series in data["result"]:
        values: Sequence[tuple[float, str]] = series["values"]
        if not values:
            raise NoData("a series has no values")
        points += (Point(float(at), float(value)) for at, value in values)
    if any(math.isnan(point.value) for point in points):
        raise NoData("a value is not a number")
    return points
