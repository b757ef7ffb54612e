# SPDX-License-Identifier: Apache-2.0
"""How a provider of identities is talked to: questions over HTTP, answers in JSON."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2

from pipecd.model.errors import Unauthenticated, Unavailable, UserMistake
from pipecd.secrets.masking import host_of

WITHIN_SECONDS = 10.0
_QUOTED = 200


@asynccontextmanager
async def conversation(proxy: str) -> AsyncGenerator["Conversation", None]:
    """Talks to a provider, through a proxy when there is one."""
    try:
        client = httpx2.AsyncClient(
            proxy=proxy or None, timeout=WITHIN_SECONDS, headers={"Accept": "application/json"}
        )
    except ValueError as e:
        raise UserMistake(f"proxy_url cannot be used: {e}") from e
    async with client:
        yield Conversation(client)


class Conversation:
    """Questions to a provider whose answers are JSON."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def get(self, url: str, token: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return _json(await self._send("GET", url, headers=headers), url)

    async def exchange(
        self, url: str, form: Mapping[str, str], login: tuple[str, str] | None = None
    ) -> Mapping[str, Any]:
        """Gives a code for tokens; a refusal tells the reason of the provider."""
        answer = await self._send("POST", url, data=dict(form), auth=login)
        tokens = as_object(_json(answer, url, even_if_refused=True))
        if answer.is_success and isinstance(tokens.get("access_token"), str):
            return tokens
        reason = tokens.get("error_description") or tokens.get("error") or answer.reason_phrase
        raise Unauthenticated(f"the provider refused the sign-in: {str(reason)[:_QUOTED]}")

    async def _send(self, method: str, url: str, **how: Any) -> httpx2.Response:
        try:
            return await self._client.request(method, url, **how)
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            # Some errors have no words of their own.
            why = str(e) or type(e).__name__
            raise Unavailable(f"cannot reach {host_of(url)}: {why[:_QUOTED]}") from e


def as_object(answer: Any) -> Mapping[str, Any]:
    """The answer when it is an object, else an empty one."""
    return cast("Mapping[str, Any]", answer if isinstance(answer, dict) else {})


def as_list(answer: Any) -> list[Any] | None:
    """The answer when it is a list."""
    return cast("list[Any]", answer) if isinstance(answer, list) else None


def _json(answer: httpx2.Response, url: str, *, even_if_refused: bool = False) -> Any:
    if not answer.is_success and not even_if_refused:
        raise Unavailable(f"{host_of(url)} answered with status {answer.status_code}")
    try:
        return answer.json()
    except ValueError as e:
        raise Unavailable(
            f"{host_of(url)} did not answer with JSON (status {answer.status_code})"
        ) from e
