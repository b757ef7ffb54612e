# SPDX-License-Identifier: Apache-2.0
"""Credentials of callers: the values of the `authorization` and `cookie` metadata."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipecd.model.errors import Unauthenticated, UserMistake

# Pairs of lower-case name and value; the metadata of gRPC or the headers of gRPC-Web.
Metadata = Sequence[tuple[str, str | bytes]]

PIPED_SCHEME = "PIPED-TOKEN"
API_KEY_SCHEME = "API-KEY"
# Upstream's parser also accepts the scheme of ID tokens, but none of its servers does.
KNOWN_SCHEMES = (PIPED_SCHEME, API_KEY_SCHEME, "ID-TOKEN")

SESSION_COOKIE = "token"


@dataclass(frozen=True)
class PipedToken:
    """The credentials of a piped; `repr` omits the key, so that it is never logged."""

    project: str
    piped: str
    key: str = field(repr=False)


def piped_token(project: str, piped: str, key: str) -> str:
    """The `authorization` value of a piped."""
    return f"{PIPED_SCHEME} {_sendable(f'{project},{piped},{key}', 'piped key')}"


def bearer(piped_authorization: str) -> str:
    """The bearer `authorization` value of a piped, for the OTLP endpoint of traces."""
    return f"Bearer {piped_authorization.removeprefix(PIPED_SCHEME).strip()}"


def api_key(key: str) -> str:
    """The `authorization` value of pipectl and other programs."""
    return f"{API_KEY_SCHEME} {_sendable(key, 'API key')}"


def parse_piped_token(metadata: Metadata) -> PipedToken:
    """Reads the piped token of a call."""
    parts = _credential(metadata, PIPED_SCHEME).split(",")
    if len(parts) != 3 or not all(parts):
        raise Unauthenticated("Unauthenticated")
    return PipedToken(*parts)


def parse_api_key(metadata: Metadata) -> str:
    """Reads the API key of a call."""
    return _credential(metadata, API_KEY_SCHEME)


def session_cookie(metadata: Metadata) -> str:
    """Reads the session token from the cookies of a call."""
    cookies = _first(metadata, "cookie") or ""
    token = ""
    for part in cookies.split(";"):
        name, equals, value = part.strip().partition("=")
        # A part without "=" is ignored; upstream's server crashes on it.
        if equals and name == SESSION_COOKIE:
            token = value
    if not token:
        raise Unauthenticated("Unauthenticated")
    return token


def _credential(metadata: Metadata, scheme: str) -> str:
    if not metadata:
        raise Unauthenticated("missing credentials")
    value = _first(metadata, "authorization")
    if value is None:
        raise Unauthenticated("missing credentials in authorization")
    parts = value.split(" ")
    if len(parts) != 2 or not parts[1] or parts[0] not in KNOWN_SCHEMES:
        raise Unauthenticated("credentials is malformed")
    if parts[0] != scheme:
        raise Unauthenticated("Unauthenticated")
    return parts[1]


def _first(metadata: Metadata, name: str) -> str | None:
    for key, value in metadata:
        if key == name:
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


def _sendable(credential: str, what: str) -> str:
    # The newline at the end of a key file is harmless, anything else cannot travel in metadata.
    trimmed = credential.strip()
    if not all("!" <= c <= "~" for c in trimmed):
        raise UserMistake(
            f"the {what} contains white space or characters outside ASCII",
            hint="copy it again, without line breaks inside",
        )
    return trimmed


def piped_key_refused() -> Unauthenticated:
    """The error of a piped or launcher whose key is refused."""
    return Unauthenticated(
        "the control plane does not accept the key of this piped",
        hint="the piped was disabled there or its key replaced: enable it, or put the new key into "
        "pipedKeyFile; with pipedKeyData, change the configuration and restart piped. It is not "
        "accepted either if projectID or pipedID are those of another piped",
    )
