# SPDX-License-Identifier: Apache-2.0
"""Signatures of HTTP deliveries by the Standard Webhooks specification."""

import base64
import hmac

PREFIX = "whsec_"
"""The prefix of secrets."""
ID, SENT_AT, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
VERSION = "v1"


def signed_headers(secret: str, id_: str, sent_at: int, body: bytes) -> dict[str, str]:
    """Returns the headers by which a receiver verifies a delivery and its time."""
    signature = digest(key_bytes(secret), id_, str(sent_at), body).decode()
    return {ID: id_, SENT_AT: str(sent_at), SIGNATURE: f"{VERSION},{signature}"}


def digest(key: bytes, id_: str, sent_at: str, body: bytes) -> bytes:
    """Returns the signature of a delivery, in base64."""
    signed = f"{id_}.{sent_at}.".encode() + body
    return base64.b64encode(hmac.digest(key, signed, "sha256"))


def key_bytes(secret: str) -> bytes:
    """Decodes the secret from base64; one that is not base64 is used as text."""
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except ValueError:
        return secret.encode()
