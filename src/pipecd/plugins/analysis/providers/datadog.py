# SPDX-License-Identifier: Apache-2.0
"""Datadog's metrics."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx2

from pipecd.plugins.analysis.point import NoData, Point, Window
from pipecd.plugins.analysis.provider import DATADOG_SITE, ProviderConfig
from pipecd.plugins.analysis.providers.question import ask, read_object, refused
from pipecd.plugins.analysis.providers.secret import secret
from pipecd.sdk import Unavailable


class DatadogProvider:
    """A site of Datadog, or a proxy before it when the address has a scheme."""

    def __init__(self, client: httpx2.AsyncClient, config: ProviderConfig) -> None:
        self._client = client
        site = config.address or DATADOG_SITE
        root = site.rstrip("/") if "://" in site else f"https://api.{site}"
        self._url = f"{root}/api/v1/query"
        self._headers = {
            "DD-API-KEY": secret(config.api_key_file, config.api_key_data, "apiKey"),
            "DD-APPLICATION-KEY": secret(
                config.application_key_file, config.application_key_data, "applicationKey"
            ),
        }

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """Every point of every series that the query finds."""
        asked = {"query": query, "from": str(int(window.start)), "to": str(int(window.end))}
        answer = await ask(self._client, "GET", self._url, params=asked, headers=self._headers)
        told = read_object(answer, self._url)
        if not answer.is_success or told.get("status") == "error":
            raise refused(answer, self._url, _reason(told))
        try:
            return _points(told.get("series") or ())
        except (KeyError, TypeError, ValueError) as e:
            raise Unavailable(f"the answer to {query} is not a list of series") from e


def _reason(told: Mapping[str, Any]) -> str:
    errors: Iterable[object] = told.get("errors") or (told.get("error") or "no reason is given",)
    return ", ".join(map(str, errors))


def _points(series: Iterable[Any]) -> list[Point]:
    points: list[Point] = []
    for one in series:
        pairs: Sequence[tuple[float, float | None]] = one["pointlist"]
        if not pairs:
            raise NoData("a series has no points")
        # Datadog fills gaps with null and tells the time in milliseconds.
        points += (Point(at / 1000, float(value)) for at, value in pairs if value is not None)
    return points
