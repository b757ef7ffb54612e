# SPDX-License-Identifier: Apache-2.0
"""The texts that reveal a secret: itself, its lines and its encodings; pure."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote, quote_plus

# Masking shorter texts would mask ordinary words that contain them.
SHORTEST = 4
# Long secrets are searched in pieces, so that a part of one is masked as well. Pieces overlap
# because base64 mixes the bits of neighbours.
_PIECE, _OVERLAP = 48, 3
# The characters that URL encoders of several languages do not escape.
_SAFE_IN_URLS = ("", "/", "!'()*", "$&+:=@")
_URL_ESCAPE = re.compile("%[0-9A-F]{2}")
_URL_SAFE = str.maketrans("+/", "-_")
_HTML_IN_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
# Texts of only these characters have no escaped form.
_NEVER_ESCAPED = re.compile(r"[A-Za-z0-9_.~-]*")
_NOT_ESCAPED_IN_JSON = re.compile(r"[A-Za-z0-9_.~ +/=:,;-]*")
_HEX = re.compile(r"([0-9A-Fa-f]{2})+")
# The number of base64 characters with bits of the zero to two bytes before a secret.
_MIXED = (0, 2, 3)


def is_too_short(secret: str) -> bool:
    """Whether a secret is too short to be masked: it may occur in ordinary words."""
    return len(secret.strip()) < SHORTEST


def forms(secret: str) -> frozenset[str]:
    """Returns every form of a secret without line breaks; the searched text has none either."""
    values = [secret]
    with suppress(binascii.Error, ValueError):
        # `pipectl encrypt` can encode a secret with base64 before it encrypts it.
        decoded = base64.b64decode("".join(secret.split()), validate=True).decode()
        if re.sub(r"[\n\r\t]", "", decoded).isprintable():
            values.append(decoded)
    if _HEX.fullmatch(secret.strip()):
        # Programs print a key that is configured in hex in the letters that they prefer.
        values += [secret.lower(), secret.upper()]
    found: set[str] = set()
    for value in values:
        lines = [line.removesuffix("\r") for line in value.split("\n") if line.strip()]
        # A printed value has separate lines; an encoded one includes the line breaks.
        found.update(_pieces("".join(lines).strip()))
        for part in {value.strip(), *(line.strip() for line in lines)}:
            for piece in _pieces(part):
                found.update(_encoded(piece))
    return frozenset(form for form in found if len(form) >= SHORTEST and "\n" not in form)


def _pieces(text: str) -> Iterator[str]:
    if len(text) <= _PIECE:
        yield text
        return
    for start in range(0, len(text) - _PIECE, _PIECE - _OVERLAP):
        yield text[start : start + _PIECE]
    yield text[-_PIECE:]


def _encoded(text: str) -> Iterator[str]:
    if len(text) < SHORTEST:
        return
    content = text.encode("utf-8", "surrogateescape")
    yield text
    yield from (content.hex(), content.hex().upper())
    yield from _in_base64(content)
    if not _NOT_ESCAPED_IN_JSON.fullmatch(text):
        in_json = _in_json(text)
        yield from in_json
        yield from (again for once in in_json for again in _in_json(once))
    if not _NEVER_ESCAPED.fullmatch(text):
        yield text.replace("'", "'\\''")
        for url_form in (quote_plus(text), *(quote(text, safe=safe) for safe in _SAFE_IN_URLS)):
            yield url_form
            yield _URL_ESCAPE.sub(lambda escape: escape[0].lower(), url_form)


def _in_json(text: str) -> tuple[str, ...]:
    ascii_only = json.dumps(text)[1:-1]
    unicode = json.dumps(text, ensure_ascii=False)[1:-1]
    return ascii_only, unicode, unicode.translate(_HTML_IN_JSON)


def _in_base64(content: bytes) -> Iterator[str]:
    """Yields the base64 of the content at the beginning of a text or after one or two bytes."""
    for before, mixed in enumerate(_MIXED):
        written = base64.b64encode(bytes(before) + content).decode().rstrip("=")
        # The last character may hold bits of the following byte, if there is one.
        for form in (written[mixed:], written[mixed : (before + len(content)) * 8 // 6]):
            yield form
            yield form.translate(_URL_SAFE)
