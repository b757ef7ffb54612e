# SPDX-License-Identifier: Apache-2.0
"""Verifies that a delivery was signed with one of the secrets of a project.

Each Git host has its own signature header. Only the first one present is verified, so that another
header, which the sender could have added, does not replace a wrong signature.
"""

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from pipecd.model.count import parse_count
from pipecd.secrets.standardwebhook import ID, SENT_AT, SIGNATURE, VERSION, digest, key_bytes

# How far the clock of a sender may be off; an older delivery is a replay.
MAX_CLOCK_SKEW = timedelta(minutes=5)

STANDARD_SIGNATURE, DELIVERY_ID = SIGNATURE, ID
_GITLAB_TOKEN = "x-gitlab-token"  # noqa: S105 - the name of a header.

_DIGEST = re.compile(rb"[0-9a-f]{64}")

Headers = Mapping[str, str]


def is_signed(headers: Headers, body: bytes, secrets: Iterable[str], now: datetime) -> bool:
    """Whether the signature is valid for one of the secrets, in constant time.

    The names of headers are in lower case.
    """
    secrets = tuple(secrets)
    if STANDARD_SIGNATURE in headers:
        return _has_valid_standard_signature(headers, body, secrets, now)
    for name, read_digest in _DIGESTS.items():
        if name in headers:
            given = read_digest(headers[name])
            digests = (hmac.digest(secret.encode(), body, "sha256").hex() for secret in secrets)
            return _any(hmac.compare_digest(given, digest.encode()) for digest in digests)
    return _has_valid_token(headers, secrets)


def _has_valid_token(headers: Headers, secrets: Iterable[str]) -> bool:
    token = headers.get(_GITLAB_TOKEN, "").encode()
    return _any(hmac.compare_digest(token, secret.encode()) for secret in secrets)


def may_be_signed(headers: Headers, secrets: Iterable[str], now: datetime) -> bool:
    """Whether the headers allow a valid delivery, so that its body is worth reading.

    The token of GitLab needs no body; a digest must at least look like one, and be recent.
    """
    if STANDARD_SIGNATURE in headers:
        return _is_recent(headers, now) and f"{VERSION}," in headers[STANDARD_SIGNATURE]
    for name, read_digest in _DIGESTS.items():
        if name in headers:
            return _DIGEST.fullmatch(read_digest(headers[name])) is not None
    return _has_valid_token(headers, secrets)


def has_signature(headers: Headers) -> bool:
    """Whether a delivery has a signature, valid or not."""
    return any(name in headers for name in (STANDARD_SIGNATURE, *_DIGESTS, _GITLAB_TOKEN))


def _has_valid_standard_signature(
    headers: Headers, body: bytes, secrets: Iterable[str], now: datetime
) -> bool:
    """Verifies the signature of the Standard Webhooks specification."""
    if not _is_recent(headers, now):
        return False
    id_, sent_at = headers.get(DELIVERY_ID, ""), headers.get(SENT_AT, "")
    # A sender that rotates its secret sends several signatures.
    signatures = [part.partition(",") for part in headers[STANDARD_SIGNATURE].split()]
    # A shell script signs more easily with the text of the secret than with the bytes it encodes.
    keys = [key for secret in secrets for key in (key_bytes(secret), secret.encode())]
    return _any(
        hmac.compare_digest(signature.encode(), digest(key, id_, sent_at, body))
        for version, _, signature in signatures
        if version == VERSION
        for key in keys
    )


def _is_recent(headers: Headers, now: datetime) -> bool:
    sent_at = parse_count(headers.get(SENT_AT, ""))
    if sent_at is None:
        return False
    return abs(now.timestamp() - sent_at) <= MAX_CLOCK_SKEW.total_seconds()


def _any(results: Iterable[bool]) -> bool:
    # All results are computed, so that the duration does not depend on which one is true.
    return bool(sum(results))


def _hex_digest(value: str) -> bytes:
    return value.strip().lower().encode()


def _prefixed_digest(value: str) -> bytes:
    """The digest after the name of its algorithm; only SHA-256 can be valid."""
    algorithm, _, digest = value.strip().partition("=")
    return digest.lower().encode() if algorithm.lower() == "sha256" else b""


_DIGESTS: dict[str, Callable[[str], bytes]] = {
    "x-forgejo-signature": _hex_digest,
    "x-gitea-signature": _hex_digest,
    "x-gogs-signature": _hex_digest,
    "x-hub-signature-256": _prefixed_digest,
    "x-hub-signature": _prefixed_digest,
}
