# SPDX-License-Identifier: Apache-2.0
"""One question to a provider over HTTP, answered in JSON."""

from collections.abc import Mapping
from typing import Any, cast

import httpx2

from pipecd.sdk import Unavailable, host_of

_QUOTED = 300


async def ask(client: httpx2.AsyncClient, method: str, url: str, **how: Any) -> httpx2.Response:
    """Sends a request; a server that cannot be reached is named without what the address hides."""
    try:
        return await client.request(method, url, **how)
    except (httpx2.HTTPError, httpx2.InvalidURL) as e:
        # Some errors have no words of their own.
        raise Unavailable(f"cannot reach {host_of(url)}: {str(e) or type(e).__name__}") from e


def read_object(answer: httpx2.Response, url: str) -> Mapping[str, Any]:
    """The object that was answered, also by a server that refuses."""
    try:
        found: object = answer.json()
    except ValueError:
        found = None
    if isinstance(found, dict):
        return cast("Mapping[str, Any]", found)
    raise refused(answer, url, "it is not a JSON object")


def refused(answer: httpx2.Response, url: str, why: object) -> Unavailable:
    """The error that says what a server did not like."""
    told = str(why)[:_QUOTED]
    return Unavailable(f"{host_of(url)} answered with status {answer.status_code}: {told}")
