# SPDX-License-Identifier: Apache-2.0
"""Google Cloud Monitoring and Logging, formerly Stackdriver.

Upstream has no metrics of them, and its search in logs always reports a match.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
import jwt

from pipecd.plugins.analysis.config import ProviderConfig
from pipecd.plugins.analysis.prometheus import query_range
from pipecd.plugins.analysis.provider_client import (
    Point,
    Window,
    error_response,
    read_json_object,
    read_secret,
    send,
)
from pipecd.sdk import UserMistake

SCOPE = "https://www.googleapis.com/auth/cloud-platform.read-only"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_FILE_VARIABLE, _HOST_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST"
_TOKEN_SECONDS, _SPARE_SECONDS = 3600, 60


class GoogleServiceAccount:
    """A service account of a key file or of the machine, with a cached access token."""

    def __init__(self, client: httpx2.AsyncClient, file: str) -> None:
        self._client = client
        file = file or os.environ.get(_FILE_VARIABLE, "")
        self._key = _read_key(file) if file else None
        host = os.environ.get(_HOST_VARIABLE) or "metadata.google.internal"
        self._metadata_url = f"http://{host}/computeMetadata/v1"
        self._project = self._key["project_id"] if self._key else ""
        self._token, self._expires_at = "", 0.0

    async def project(self) -> str:
        """Returns the project of the account."""
        if not self._project:
            url = f"{self._metadata_url}/project/project-id"
            response = await self._get_metadata(url)
            self._project = response.text.strip()
        return self._project

    async def headers(self) -> dict[str, str]:
        """Returns the authorization header."""
        if time.monotonic() >= self._expires_at:
            if self._key is None:
                url = f"{self._metadata_url}/instance/service-accounts/default/token"
                response = await self._get_metadata(url)
            else:
                url = self._key["token_uri"]
                form = {"grant_type": _GRANT, "assertion": _signed_assertion(self._key)}
                response = await send(self._client, "POST", url, data=form)
            body = read_json_object(response, url)
            if "access_token" not in body:
                reason = body.get("error_description") or body.get("error")
                raise error_response(response, url, reason or "there is no access_token")
            self._token = str(body["access_token"])
            lifetime = float(body.get("expires_in") or _TOKEN_SECONDS)
            self._expires_at = time.monotonic() + lifetime - _SPARE_SECONDS
        return {"Authorization": f"Bearer {self._token}"}

    async def _get_metadata(self, url: str) -> httpx2.Response:
        response = await send(self._client, "GET", url, headers={"Metadata-Flavor": "Google"})
        if not response.is_success:
            raise error_response(response, url, response.reason_phrase)
        return response


def _read_key(file: str) -> Mapping[str, str]:
    try:
        key = json.loads(read_secret(file, "serviceAccountFile"))
        return {
            name: str(key[name])
            for name in ("project_id", "client_email", "private_key", "token_uri")
        }
    except (ValueError, KeyError, TypeError):
        # The cause would carry the key.
        raise UserMistake(
            f"serviceAccountFile {file} is not the key of a service account"
        ) from None


def _signed_assertion(key: Mapping[str, str]) -> str:
    now = int(time.time())
    claims = {
        "iss": key["client_email"],
        "scope": SCOPE,
        "aud": key["token_uri"],
        "iat": now,
        "exp": now + _TOKEN_SECONDS,
    }
    try:
        return jwt.encode(claims, key["private_key"], algorithm="RS256")
    except (ValueError, TypeError, jwt.PyJWTError):
        raise UserMistake("the private_key of the serviceAccountFile cannot be used") from None


_MONITORING = "https://monitoring.googleapis.com"
_LOGGING = "https://logging.googleapis.com"
_ENTRIES = 5
_MAX_QUOTED = 300


class StackdriverProvider:
    """Metrics in PromQL and log entries of the project of a service account.

    An `address` replaces both endpoints of Google.
    """

    def __init__(self, client: httpx2.AsyncClient, config: ProviderConfig) -> None:
        self._client = client
        self._account = GoogleServiceAccount(client, config.service_account_file)
        self._monitoring = config.address.rstrip("/") or _MONITORING
        self._logging = config.address.rstrip("/") or _LOGGING

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """Returns every point of every matching series."""
        path = f"v1/projects/{await self._account.project()}/location/global/prometheus/api/v1"
        url = f"{self._monitoring}/{path}/query_range"
        headers = await self._account.headers()
        return await query_range(self._client, url, query, window, headers=headers)

    async def entries(self, query: str, window: Window) -> Sequence[str]:
        """Returns the first entries that match the query."""
        url = f"{self._logging}/v2/entries:list"
        start, end = _timestamp(window.start), _timestamp(window.end)
        parameters = {
            "resourceNames": [f"projects/{await self._account.project()}"],
            "filter": f'timestamp>="{start}" timestamp<"{end}"'
            + (f" ({query})" if query.strip() else ""),
            "orderBy": "timestamp asc",
            "pageSize": _ENTRIES,
        }
        headers = await self._account.headers()
        response = await send(self._client, "POST", url, json=parameters, headers=headers)
        body = read_json_object(response, url)
        if not response.is_success:
            error: Any = body.get("error") or {}
            raise error_response(response, url, error.get("message") or response.reason_phrase)
        return [_entry_text(entry) for entry in body.get("entries") or ()]


def _timestamp(at: float) -> str:
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _entry_text(entry: Mapping[str, Any]) -> str:
    text = entry.get("textPayload")
    if text is None:
        payload: Any = entry.get("jsonPayload") or entry.get("protoPayload") or {}
        text = payload.get("message") or json.dumps(payload)
    parts = (entry.get("timestamp", ""), entry.get("severity", ""), str(text)[:_MAX_QUOTED])
    return " ".join(word for word in parts if word)
