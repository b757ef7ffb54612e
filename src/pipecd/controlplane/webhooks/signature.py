# SPDX-License-Identifier: Apache-2.0
"""Whether a delivery was signed with one of the secrets of a project.

Each Git host has a header of its own. The first one that is present counts: a wrong signature is
not outweighed by another header that the sender could make up as well.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from pipecd.secrets.standardwebhook import ID, SENT_AT, SIGNATURE, VERSION, digest, key_bytes

# How far the clock of a sender may be off; a delivery that is older is a replay.
WINDOW = timedelta(minutes=5)

STANDARD, DELIVERY = SIGNATURE, ID

Headers = Mapping[str, str]


def is_signed(headers: Headers, body: bytes, secrets: Iterable[str], now: datetime) -> bool:
    """Whether the signature fits one of the secrets; nothing tells which, or how far it fits.

    The names of headers are in lower case.
    """
    secrets = tuple(secrets)
    if STANDARD in headers:
        return _is_in_time(headers, now) and _any(
            hmac.compare_digest(given, expected)
            for given in _standard_signatures(headers)
            for secret in secrets
            for expected in _standard_digests(headers, body, secret)
        )
    for name, digest_in in _DIGESTS.items():
        if name in headers:
            given = digest_in(headers[name])
            return _any(hmac.compare_digest(given, _digest(body, secret)) for secret in secrets)
    token = headers.get("x-gitlab-token", "").encode()
    return _any(hmac.compare_digest(token, secret.encode()) for secret in secrets)


def has_signature(headers: Headers) -> bool:
    """Whether a delivery claims to be signed at all."""
    return any(name in headers for name in (STANDARD, *_DIGESTS, "x-gitlab-token"))


def _any(answers: Iterable[bool]) -> bool:
    # Every answer is worked out, so that the time it takes tells nothing.
    return bool(sum(answers))


def _digest(body: bytes, secret: str) -> bytes:
    return hmac.digest(secret.encode(), body, "sha256").hex().encode()


def _bare(value: str) -> bytes:
    return value.strip().lower().encode()


def _named(value: str) -> bytes:
    """The digest behind the name of its algorithm; another one than SHA-256 never fits."""
    algorithm, _, digest = value.strip().partition("=")
    return digest.lower().encode() if algorithm.lower() == "sha256" else b""


_DIGESTS: dict[str, Callable[[str], bytes]] = {
    "x-forgejo-signature": _bare,
    "x-gitea-signature": _bare,
    "x-gogs-signature": _bare,
    "x-hub-signature-256": _named,
    "x-hub-signature": _named,
}


def _standard_signatures(headers: Headers) -> list[bytes]:
    """Those of the one version that is understood; a sender may give several while it rotates."""
    parts = [part.partition(",") for part in headers[STANDARD].split()]
    return [signature.encode() for version, _, signature in parts if version == VERSION]


def _standard_digests(headers: Headers, body: bytes, secret: str) -> Iterable[bytes]:
    id_, sent_at = headers.get(DELIVERY, ""), headers.get(SENT_AT, "")
    # A shell finds the text of the secret itself easier to sign with.
    for key in (key_bytes(secret), secret.encode()):
        yield digest(key, id_, sent_at, body)


def _is_in_time(headers: Headers, now: datetime) -> bool:
    sent_at = headers.get(SENT_AT, "")
    if not (sent_at.isascii() and sent_at.isdigit() and len(sent_at) < 15):
        return False
    return abs(now.timestamp() - int(sent_at)) <= WINDOW.total_seconds()
