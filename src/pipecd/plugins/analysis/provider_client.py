# SPDX-License-Identifier: Apache-2.0
"""What all providers share: points and windows, HTTP requests, credentials from files."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx2

from pipecd.plugins.analysis.config import HttpCheck
from pipecd.sdk import PipecdError, Unavailable, UserMistake, host_of


class NoData(PipecdError):
    """The provider has no data for the requested window."""


@dataclass(frozen=True)
class Window:
    """A period, in Unix seconds."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """The length in seconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Point:
    """A measured value with its time."""

    at: float
    value: float

    def __str__(self) -> str:
        return f"{self.value:g} at {datetime.fromtimestamp(self.at, UTC):%H:%M:%S}"


_MAX_QUOTED = 300


async def send(
    client: httpx2.AsyncClient, method: str, url: str, **options: Any
) -> httpx2.Response:
    """Sends a request; an error names the host without the credentials of the URL."""
    try:
        return await client.request(method, url, **options)
    except (httpx2.HTTPError, httpx2.InvalidURL) as e:
        # Some errors have an empty message.
        raise Unavailable(f"cannot reach {host_of(url)}: {str(e) or type(e).__name__}") from e


def read_json_object(response: httpx2.Response, url: str) -> Mapping[str, Any]:
    """Returns the JSON object in a response of any status."""
    try:
        body: object = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        return cast("Mapping[str, Any]", body)
    raise error_response(response, url, "it is not a JSON object")


def error_response(response: httpx2.Response, url: str, reason: object) -> Unavailable:
    """Returns an error with the status of a response and a reason."""
    body = str(reason)[:_MAX_QUOTED]
    return Unavailable(f"{host_of(url)} answered with status {response.status_code}: {body}")


def read_secret(file: str, what: str) -> str:
    """Returns the content of a file without surrounding white space."""
    try:
        return Path(file).read_text().strip()
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not a text"
        raise UserMistake(f"{what} {file} cannot be read: {reason}") from e


def read_key(file: str, data: str, what: str) -> str:
    """Returns a key from a file or, base64-encoded, from the configuration."""
    if file:
        return read_secret(file, f"{what}File")
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        # The cause would carry the secret.
        raise UserMistake(f"{what}Data is not base64") from None


async def request_status(client: httpx2.AsyncClient, check: HttpCheck) -> int:
    """Sends the request of a check and returns the status code."""
    headers = {header.key: header.value for header in check.headers}
    method = check.method or "GET"
    try:
        async with client.stream(
            method, check.url, headers=headers, follow_redirects=True
        ) as response:
            return response.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as e:
        raise Unavailable(f"cannot reach {host_of(check.url)}: {str(e) or type(e).__name__}") from e
