# SPDX-License-Identifier: Apache-2.0
"""Signatures over HTTP deliveries in the way of Standard Webhooks."""

import base64
import binascii
import hmac

PREFIX = "whsec_"
"""What libraries know a secret by."""
ID, SENT_AT, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
VERSION = "v1"


def signed_headers(secret: str, id_: str, sent_at: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver can tell that a delivery is genuine, and when it was sent."""
    signature = digest(key_bytes(secret), id_, str(sent_at), body).decode()
    return {ID: id_, SENT_AT: str(sent_at), SIGNATURE: f"{VERSION},{signature}"}


def digest(key: bytes, id_: str, sent_at: str, body: bytes) -> bytes:
    """The signature of one delivery, in base64."""
    signed = f"{id_}.{sent_at}.".encode() + body
    return base64.b64encode(hmac.digest(key, signed, "sha256"))


def key_bytes(secret: str) -> bytes:
    """The key as libraries for Standard Webhooks have it; one that is not base64 is its text."""
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        return secret.encode()
