# SPDX-License-Identifier: Apache-2.0
"""A client of one Google Cloud API over REST; needs google-auth and requests."""

import json
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import google.auth
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from requests import Response
from requests.exceptions import RequestException

from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable, UserMistake
from pipecd.wire.cloud import CloudRejection

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# A thread cannot be cancelled, so every call needs timeouts.
_CONNECT_TIMEOUT, _READ_TIMEOUT = 3, 10


class GoogleApi:
    """Calls an API; maps errors of Google Cloud to those of `pipecd.model.errors`."""

    def __init__(self, service: str, credentials_file: str) -> None:
        # The variable by which gcloud overrides an endpoint.
        override = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", "")
        self._root = override or f"https://{service}.googleapis.com/"
        self._session: Any = AuthorizedSession(load_credentials(credentials_file))

    def __call__(
        self, path: str, *, about: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            response: Response = self._session.request(
                "GET" if body is None else "POST",
                urljoin(self._root, path),
                json=body,
                timeout=(_CONNECT_TIMEOUT, _READ_TIMEOUT),
            )
            content: dict[str, Any] = response.json() if response.content else {}
        except (RequestException, TransportError) as e:
            raise Unavailable(
                f"Google Cloud did not respond to the request for {about}: {e}"
            ) from e
        except GoogleAuthError as e:
            raise Denied(
                f"Google Cloud rejected the credentials for {about}: {e}",
                hint="check the service account and its key",
            ) from e
        if not response.ok:
            raise _to_error(response.status_code, content.get("error", {}), about)
        return content


def load_credentials(file: str) -> Any:
    """Reads credentials of any kind from a file, or finds those of the environment."""
    auth: Any = google.auth
    if not file:
        try:
            credentials, _ = auth.default(scopes=_SCOPES)
        except GoogleAuthError as e:
            raise UserMistake(
                f"there are no credentials for Google Cloud: {e}",
                hint="give the machine or pod a service account, or set "
                "GOOGLE_APPLICATION_CREDENTIALS",
            ) from e
        return credentials
    try:
        content: Any = json.loads(Path(file).read_bytes())
        with warnings.catch_warnings():
            # The warning is about files of others; this one belongs to the operator.
            warnings.simplefilter("ignore", DeprecationWarning)
            credentials, _ = auth.load_credentials_from_dict(content, scopes=_SCOPES)
    except OSError as e:
        raise UserMistake(
            f"cannot read the service account {file}: {e.strerror}",
            hint="name a file that piped may read",
        ) from e
    except (GoogleAuthError, ValueError, AttributeError):
        # The cause may carry the key.
        raise UserMistake(f"{file} has no key of a service account") from None
    return credentials


def renew_token(credentials: Any) -> None:
    """Requests a new access token."""
    # google-auth itself waits for two minutes.
    request: Any = partial(Request(), timeout=_READ_TIMEOUT)
    try:
        credentials.refresh(request)
    except TransportError as e:
        raise Unavailable(f"Google Cloud did not issue an access token: {e}") from e
    except GoogleAuthError as e:
        raise Denied(
            f"Google Cloud rejected the credentials: {e}",
            hint="check the service account and its key",
        ) from e


def _to_error(status: int, error: dict[str, Any], about: str) -> PipecdError:
    code, reason = error.get("status", str(status)), error.get("message", f"HTTP {status}")
    if status == 404:
        return NotFound(f"{about} does not exist", hint="check its full resource name")
    if status in (401, 403):
        return Denied(
            f"Google Cloud denies access to {about}: {reason}",
            hint="check the service account and its roles",
        )
    if status == 429 or status >= 500:
        return Unavailable(f"Google Cloud is unavailable for {about}: {reason}")
    return CloudRejection(f"Google Cloud rejected the request for {about}: {reason}", code=code)
