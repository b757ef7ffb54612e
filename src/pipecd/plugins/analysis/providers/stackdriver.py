# SPDX-License-Identifier: Apache-2.0
"""Google Cloud Monitoring and Logging, which were once called Stackdriver.

Upstream has no metrics of them, and its search in logs always finds something unexpected.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2

from pipecd.plugins.analysis.point import Point, Window
from pipecd.plugins.analysis.provider import ProviderConfig
from pipecd.plugins.analysis.providers.google import GoogleAccount
from pipecd.plugins.analysis.providers.prometheus import query_range
from pipecd.plugins.analysis.providers.question import ask, read_object, refused

_MONITORING = "https://monitoring.googleapis.com"
_LOGGING = "https://logging.googleapis.com"
_ENTRIES = 5
_QUOTED = 300


class StackdriverProvider:
    """Metrics in PromQL and log entries of the project of a service account.

    An `address` stands in for both of Google, for networks that know them by a name of their own.
    """

    def __init__(self, client: httpx2.AsyncClient, config: ProviderConfig) -> None:
        self._client = client
        self._account = GoogleAccount(client, config.service_account_file)
        self._monitoring = config.address.rstrip("/") or _MONITORING
        self._logging = config.address.rstrip("/") or _LOGGING

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """Every point of every series that the query finds."""
        where = f"v1/projects/{await self._account.project()}/location/global/prometheus/api/v1"
        url = f"{self._monitoring}/{where}/query_range"
        headers = await self._account.headers()
        return await query_range(self._client, url, query, window, headers=headers)

    async def entries(self, query: str, window: Window) -> Sequence[str]:
        """The first entries that match the query."""
        url = f"{self._logging}/v2/entries:list"
        asked = {
            "resourceNames": [f"projects/{await self._account.project()}"],
            "filter": f'timestamp>="{_moment(window.start)}" timestamp<"{_moment(window.end)}"'
            + (f" ({query})" if query.strip() else ""),
            "orderBy": "timestamp asc",
            "pageSize": _ENTRIES,
        }
        headers = await self._account.headers()
        answer = await ask(self._client, "POST", url, json=asked, headers=headers)
        told = read_object(answer, url)
        if not answer.is_success:
            error: Any = told.get("error") or {}
            raise refused(answer, url, error.get("message") or answer.reason_phrase)
        return [_said(entry) for entry in told.get("entries") or ()]


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(entry: Mapping[str, Any]) -> str:
    text = entry.get("textPayload")
    if text is None:
        payload: Any = entry.get("jsonPayload") or entry.get("protoPayload") or {}
        text = payload.get("message") or json.dumps(payload)
    words = (entry.get("timestamp", ""), entry.get("severity", ""), str(text)[:_QUOTED])
    return " ".join(word for word in words if word)
