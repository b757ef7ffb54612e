# SPDX-License-Identifier: Apache-2.0
"""Prometheus, and whatever else answers its range queries."""

import math
from collections.abc import Sequence
from typing import Any

import httpx2

from pipecd.plugins.analysis.point import NoData, Point, Window
from pipecd.plugins.analysis.provider import ProviderConfig
from pipecd.plugins.analysis.providers.question import ask, read_object, refused
from pipecd.plugins.analysis.providers.secret import read_secret
from pipecd.sdk import Unavailable

_STEP = 60.0
_SHORTEST_STEP = 0.001
# Some proxies let only requests pass that change nothing.
_POST_REFUSED = (405, 501)


class PrometheusProvider:
    """A Prometheus server, with a password if both files are named."""

    def __init__(self, client: httpx2.AsyncClient, config: ProviderConfig) -> None:
        self._client = client
        self._url = f"{config.address.rstrip('/')}/api/v1/query_range"
        self._how: dict[str, Any] = {}
        if config.username_file and config.password_file:
            name = read_secret(config.username_file, "usernameFile")
            self._how["auth"] = (name, read_secret(config.password_file, "passwordFile"))

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """Every point of every series that the query finds."""
        return await query_range(self._client, self._url, query, window, **self._how)


async def query_range(
    client: httpx2.AsyncClient, url: str, query: str, window: Window, **how: Any
) -> Sequence[Point]:
    """Asks a range query; a minute lies between two points, or the window if it is shorter."""
    asked = {
        "query": query,
        "start": f"{window.start:.3f}",
        "end": f"{window.end:.3f}",
        "step": f"{max(min(_STEP, window.length), _SHORTEST_STEP):.3f}",
    }
    answer = await ask(client, "POST", url, data=asked, **how)
    if answer.status_code in _POST_REFUSED:
        answer = await ask(client, "GET", url, params=asked, **how)
    if answer.status_code == 401:
        raise refused(answer, url, "the name or the password is wrong")
    told = read_object(answer, url)
    if told.get("status") != "success":
        raise refused(answer, url, told.get("error") or answer.reason_phrase)
    try:
        return _points(told["data"])
    except (KeyError, TypeError, ValueError) as e:
        raise Unavailable(f"the answer to {query} is not a range of points") from e


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
