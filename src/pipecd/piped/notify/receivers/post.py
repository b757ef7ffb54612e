# SPDX-License-Identifier: Apache-2.0
"""Posts a letter to an address; the address may be a secret and appears in no error."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx2

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.notify.outbox import Later
from pipecd.secrets.masking import Masking, host_of

JSON = {"Content-Type": "application/json"}
_QUOTED = 200
_MOST_READ = 64 * 1024
_TOO_MANY = 429
# The receiver was too slow to take the letter, or could not yet.
_PASSING = frozenset({408, 425})


async def post(
    client: httpx2.AsyncClient,
    url: str,
    body: bytes,
    *,
    headers: Mapping[str, str],
    secrets: Iterable[str] = (),
) -> bytes:
    """Returns what a receiver that took the letter answered."""
    hidden = Masking([*secrets, url, *_secret_parts(url)])
    try:
        async with client.stream("POST", url, content=body, headers=headers) as answer:
            content = await _beginning(answer)
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeEncodeError) as e:
        told = hidden.hide(str(e))
        raise UserMistake(f"the address or a header of the receiver is wrong: {told}") from None
    except httpx2.HTTPError as e:
        # Some errors have no words of their own.
        told = hidden.hide(str(e)) or type(e).__name__
        raise Unavailable(f"cannot reach {host_of(url)}: {told}") from None
    if answer.is_success:
        return content
    said = hidden.hide(content.decode("utf-8", "replace"))[:_QUOTED]
    told = f"{host_of(url)} answered with status {answer.status_code}: {said}"
    if answer.status_code == _TOO_MANY or answer.is_server_error or answer.status_code in _PASSING:
        raise Later(told, seconds=_retry_after(answer.headers.get("retry-after", "")))
    raise UserMistake(told)


async def _beginning(answer: httpx2.Response) -> bytes:
    """So much of an answer as is worth reading."""
    content = b""
    async for part in answer.aiter_bytes():
        content += part
        if len(content) >= _MOST_READ:
            break
    return content[:_MOST_READ]


def _retry_after(value: str) -> float:
    """The seconds that a receiver asks for, as a number or as the end of them."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _secret_parts(url: str) -> Iterable[str]:
    """What is secret of an address: all but its host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ()
    return (parts.path, parts.query, *parts.path.split("/"), parts.password or "")
