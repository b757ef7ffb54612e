# SPDX-License-Identifier: Apache-2.0
"""Who asks Google's APIs: a service account of a file, or that of the machine piped runs on."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import httpx2
import jwt

from pipecd.plugins.analysis.providers.question import ask, read_object, refused
from pipecd.plugins.analysis.providers.secret import read_secret
from pipecd.sdk import UserMistake

SCOPE = "https://www.googleapis.com/auth/cloud-platform.read-only"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_FILE_VARIABLE, _HOST_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST"
_TOKEN_SECONDS, _SPARE_SECONDS = 3600, 60


class GoogleAccount:
    """A service account and its project, with a token while it is good."""

    def __init__(self, client: httpx2.AsyncClient, file: str) -> None:
        self._client = client
        file = file or os.environ.get(_FILE_VARIABLE, "")
        self._key = _read_key(file) if file else None
        host = os.environ.get(_HOST_VARIABLE) or "metadata.google.internal"
        self._machine = f"http://{host}/computeMetadata/v1"
        self._project = self._key["project_id"] if self._key else ""
        self._token, self._good_until = "", 0.0

    async def project(self) -> str:
        """The project that is asked about."""
        if not self._project:
            url = f"{self._machine}/project/project-id"
            answer = await self._of_machine(url)
            self._project = answer.text.strip()
        return self._project

    async def headers(self) -> dict[str, str]:
        """What a request must carry."""
        if time.monotonic() >= self._good_until:
            told = await self._new_token()
            self._token = str(told["access_token"])
            lasts = float(told.get("expires_in") or _TOKEN_SECONDS)
            self._good_until = time.monotonic() + lasts - _SPARE_SECONDS
        return {"Authorization": f"Bearer {self._token}"}

    async def _new_token(self) -> Mapping[str, Any]:
        if self._key is None:
            url = f"{self._machine}/instance/service-accounts/default/token"
            answer = await self._of_machine(url)
        else:
            url = self._key["token_uri"]
            form = {"grant_type": _GRANT, "assertion": _signed(self._key)}
            answer = await ask(self._client, "POST", url, data=form)
        told = read_object(answer, url)
        if "access_token" not in told:
            why = told.get("error_description") or told.get("error") or "there is no access_token"
            raise refused(answer, url, why)
        return told

    async def _of_machine(self, url: str) -> httpx2.Response:
        answer = await ask(self._client, "GET", url, headers={"Metadata-Flavor": "Google"})
        if not answer.is_success:
            raise refused(answer, url, answer.reason_phrase)
        return answer


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


def _signed(key: Mapping[str, str]) -> str:
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
