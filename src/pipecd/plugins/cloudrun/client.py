# SPDX-License-Identifier: Apache-2.0
"""The client of the Cloud Run Admin API v1, whose services are those of Knative."""

import asyncio
import json
import os
import random
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx2

from pipecd.plugins.cloudrun.config import CloudRunTarget
from pipecd.sdk import Backoff, PipecdError, Unavailable, UserMistake
from pipecd.sdk.diff import is_map
from pipecd.sdk.google import GoogleCredentials
from pipecd.sdk.unstructured import Body, list_at, text_at

# The variable by which gcloud overrides the endpoint.
_ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN"
_TIMEOUT = httpx2.Timeout(30.0, connect=5.0, pool=None)
_CONNECTIONS = 8
# These attempts last about half a minute.
_ATTEMPTS = 7
RETRY_BACKOFF = Backoff(first=0.5, longest=16)
_MAX_RETRY_AFTER = 60.0
_RETRYABLE = (429, 500, 502, 503, 504)
_PAGE = 500
_CERTIFICATE_ERROR = "CERTIFICATE_VERIFY_FAILED"


_NEW_COMMIT = "push a new commit, which has a revision of its own"


class _Missing(UserMistake):
    """What a request names does not exist."""


_Explanation: TypeAlias = tuple[type[PipecdError], str, str]
_EXPLANATIONS: Mapping[int, _Explanation] = {
    401: (
        Unavailable,
        "Google Cloud does not accept the credentials of deploy target {target}: {said}",
        "renew credentialsFile of the deploy target, or the service account of piped",
    ),
    403: (
        UserMistake,
        "piped may not access {about} of project {project}: {said}",
        "grant its service account the roles Cloud Run Admin and Service Account User, and enable "
        "the Cloud Run Admin API",
    ),
    404: (_Missing, "{about} does not exist in project {project}: {said}", ""),
    429: (
        Unavailable,
        "Cloud Run throttles the requests for project {project}: {said}",
        "it was retried; raise the quota of the Cloud Run Admin API",
    ),
}
_UNAVAILABLE: _Explanation = (
    Unavailable,
    "Cloud Run is unavailable for {about}: {said}",
    "try again later",
)
_REFUSED: _Explanation = (
    UserMistake,
    "Cloud Run refuses {about}: {said}",
    "correct the service manifest",
)


class ServiceChanged(PipecdError):
    """The service was changed since it was read, or created meanwhile."""


class RevisionExists(UserMistake):
    """A revision of that name exists with another configuration."""


class CloudRunClient:
    """Requests for one project and region, repeated while the API throttles or is unavailable."""

    def __init__(self, target: str, settings: CloudRunTarget) -> None:
        self._target, self._settings = target, settings
        self._credentials = GoogleCredentials(settings.credentials_file)
        endpoint = (
            settings.endpoint
            or os.environ.get(_ENDPOINT_VARIABLE)
            or f"https://{settings.region}-run.googleapis.com"
        )
        self._http = httpx2.AsyncClient(
            base_url=f"{endpoint.rstrip('/')}/apis/serving.knative.dev/v1/namespaces/"
            f"{quote(settings.project, safe='')}",
            timeout=_TIMEOUT,
            limits=httpx2.Limits(
                max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS
            ),
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def service(self, name: str) -> Body | None:
        """Returns a service, or None if it does not exist."""
        return await self._find(f"services/{quote(name, safe='')}", f"service {name}")

    async def revision(self, name: str) -> Body | None:
        """Returns a revision, or None if it does not exist."""
        return await self._find(f"revisions/{quote(name, safe='')}", f"revision {name}")

    async def create_service(self, service: Body) -> Body:
        """Creates a service; ServiceChanged if it exists already."""
        name = text_at(service, "metadata", "name")
        return await self._send("POST", "services", f"service {name}", body=service)

    async def replace_service(self, service: Body) -> Body:
        """Replaces a service; ServiceChanged if its `resourceVersion` is not the current one."""
        name = text_at(service, "metadata", "name")
        path = f"services/{quote(name, safe='')}"
        return await self._send("PUT", path, f"service {name}", body=service)

    async def services(self, selector: str) -> list[Body]:
        """Returns the services with these labels."""
        return await self._list("services", selector)

    async def revisions(self, selector: str) -> list[Body]:
        """Returns the revisions with these labels."""
        return await self._list("revisions", selector)

    async def _list(self, kind: str, selector: str) -> list[Body]:
        items: list[Body] = []
        cursor = ""
        while True:
            query = {"labelSelector": selector, "limit": str(_PAGE)}
            if cursor:
                query["continue"] = cursor
            page = await self._send("GET", kind, f"{kind} of the project", query=query)
            # A list does not repeat the type of its elements.
            items += (item for item in list_at(page, "items") if is_map(item))
            cursor = text_at(page, "metadata", "continue")
            if not cursor:
                return items

    async def _find(self, path: str, about: str) -> Body | None:
        try:
            return await self._send("GET", path, about)
        except _Missing:
            return None

    async def _send(
        self,
        method: str,
        path: str,
        about: str,
        *,
        body: Body | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Body:
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(1, _ATTEMPTS + 1):
            headers = {"authorization": await self._credentials.header()}
            if content is not None:
                headers["content-type"] = "application/json"
            try:
                response = await self._http.request(
                    method, path, content=content, headers=headers, params=query
                )
            except httpx2.HTTPError as e:
                # A lost response may be of a successful request, which may be repeated.
                if attempt == _ATTEMPTS:
                    raise self._unreachable(e) from e
                await self._pause(attempt)
                continue
            code = response.status_code
            if code == 401 and attempt == 1:
                self._credentials.invalidate()
            elif code in _RETRYABLE and attempt < _ATTEMPTS:
                await self._pause(attempt, response.headers.get("retry-after", ""))
            else:
                return self._read(response, about)
        raise AssertionError("the last attempt returns or raises")

    async def _pause(self, attempt: int, retry_after: str = "") -> None:
        delay = RETRY_BACKOFF.after(attempt)
        if retry_after.isdecimal():
            delay = min(max(delay, float(retry_after)), _MAX_RETRY_AFTER)
        await asyncio.sleep(delay * random.uniform(1.0, 1.2))  # noqa: S311

    def _read(self, response: httpx2.Response, about: str) -> Body:
        try:
            content: Any = response.json()
        except ValueError:
            content = {}
        code = response.status_code
        if code < 400:
            if not is_map(content):
                raise Unavailable(f"Cloud Run sent something else than {about}")
            return content
        error: Any = content.get("error") if is_map(content) else None
        said = text_at(error, "message") or f"HTTP status {code}"
        raise self._explain(code, text_at(error, "status"), said, about)

    def _explain(self, code: int, status: str, said: str, about: str) -> PipecdError:
        if code == 409:
            # A conflict of revisions, or else of the version of the service.
            is_revision = status == "ALREADY_EXISTS" and said.startswith("Revision")
            return RevisionExists(said, hint=_NEW_COMMIT) if is_revision else ServiceChanged(said)
        other = _UNAVAILABLE if code >= 500 else _REFUSED
        error, text, hint = _EXPLANATIONS.get(code, other)
        target, project = self._target, self._settings.project
        return error(text.format(about=about, target=target, project=project, said=said), hint=hint)

    def _unreachable(self, cause: Exception) -> Unavailable:
        reason = str(cause) or type(cause).__name__
        hint = f"check region and endpoint of deploy target {self._target}, and the network"
        if _CERTIFICATE_ERROR in reason:
            hint = "add the authority of its certificate to the trusted ones of the machine"
        return Unavailable(f"{self._http.base_url.host} cannot be reached: {reason}", hint=hint)
