# SPDX-License-Identifier: Apache-2.0
"""Datadog's metrics."""

from collections.abc import Iterable, Sequence
from typing import Any

import httpx2

from pipecd.plugins.analysis.config import DATADOG_SITE, ProviderConfig
from pipecd.plugins.analysis.provider_client import (
    NoData,
    Point,
    Window,
    error_response,
    read_json_object,
    read_key,
    send,
)
from pipecd.sdk import Unavailable


class DatadogProvider:
    """A site of Datadog, or a proxy in front of it if the address has a scheme."""

    def __init__(self, client: httpx2.AsyncClient, config: ProviderConfig) -> None:
        self._client = client
        site = config.address or DATADOG_SITE
        root = site.rstrip("/") if "://" in site else f"https://api.{site}"
        self._url = f"{root}/api/v1/query"
        self._headers = {
            "DD-API-KEY": read_key(config.api_key_file, config.api_key_data, "apiKey"),
            "DD-APPLICATION-KEY": read_key(
                config.application_key_file, config.application_key_data, "applicationKey"
            ),
        }

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """Returns every point of every matching series."""
        parameters = {"query": query, "from": str(int(window.start)), "to": str(int(window.end))}
        response = await send(
            self._client, "GET", self._url, params=parameters, headers=self._headers
        )
        body = read_json_object(response, self._url)
        if not response.is_success or body.get("status") == "error":
            errors: Iterable[object] = body.get("errors") or [
                body.get("error") or "no reason given"
            ]
            raise error_response(response, self._url, ", ".join(map(str, errors)))
        try:
            return _points(body.get("series") or ())
        except (KeyError, TypeError, ValueError) as e:
            raise Unavailable(f"the response to {query} is not a list of series") from e


def _points(series: Iterable[Any]) -> list[Point]:
    points: list[Point] = []
    for one in series:
        pairs: Sequence[tuple[float, float | None]] = one["pointlist"]
        if not pairs:
            raise NoData("a series has no points")
        # Datadog fills gaps with null and sends times in milliseconds.
        points += (Point(at / 1000, float(value)) for at, value in pairs if value is not None)
    return points
