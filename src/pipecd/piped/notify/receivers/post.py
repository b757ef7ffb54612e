# SPDX-License-Identifier: Apache-2.0
"""Posts a request to the URL of a receiver, which may be secret and appears in no error."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx2

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.notify.outbox import RetryAfter
from pipecd.secrets.masking import Masking, host_of

JSON = {"Content-Type": "application/json"}
_QUOTED_LENGTH = 200
_READ_LIMIT = 64 * 1024
# Request Timeout, Too Early, Too Many Requests.
_TRANSIENT_STATUSES = frozenset({408, 425, 429})


async def post(
    client: httpx2.AsyncClient,
    url: str,
    body: bytes,
    *,
    headers: Mapping[str, str],
    secrets: Iterable[str] = (),
) -> bytes:
    """Returns the body of a successful response; raises RetryAfter if a retry may succeed."""
    masking = Masking([*secrets, url, *_secret_parts(url)])
    try:
        async with client.stream("POST", url, content=body, headers=headers) as response:
            content = b""
            async for part in response.aiter_bytes():
                content += part
                if len(content) >= _READ_LIMIT:
                    break
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeEncodeError) as e:
        cause = masking.hide(str(e))
        raise UserMistake(f"the URL or a header of the receiver is invalid: {cause}") from None
    except httpx2.HTTPError as e:
        # Some of these errors have no message.
        cause = masking.hide(str(e)) or type(e).__name__
        raise Unavailable(f"cannot reach {host_of(url)}: {cause}") from None
    if response.is_success:
        return content[:_READ_LIMIT]
    quoted = masking.hide(content.decode("utf-8", "replace"))[:_QUOTED_LENGTH]
    message = f"{host_of(url)} responded with status {response.status_code}: {quoted}"
    if response.is_server_error or response.status_code in _TRANSIENT_STATUSES:
        raise RetryAfter(message, seconds=_retry_after(response.headers.get("retry-after", "")))
    raise UserMistake(message)


def _retry_after(value: str) -> float:
    """The seconds of a Retry-After header, which is a number or a date."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _secret_parts(url: str) -> Iterable[str]:
    """The secret parts of a URL: all but its host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ()
    return (parts.path, parts.query, *parts.path.split("/"), parts.password or "")
