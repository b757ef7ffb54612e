# SPDX-License-Identifier: Apache-2.0
"""Requests whose answers must have an expected code."""

import httpx2

from pipecd.plugins.analysis.check import HttpCheck
from pipecd.sdk import Unavailable, host_of


async def status_of(client: httpx2.AsyncClient, check: HttpCheck) -> int:
    """The code of the answer, of which nothing else is read."""
    headers = {header.key: header.value for header in check.headers}
    method = check.method or "GET"
    try:
        async with client.stream(
            method, check.url, headers=headers, follow_redirects=True
        ) as answer:
            return answer.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as e:
        raise Unavailable(f"cannot reach {host_of(check.url)}: {str(e) or type(e).__name__}") from e
