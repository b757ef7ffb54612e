# SPDX-License-Identifier: Apache-2.0
"""The texts that give a secret away: itself, its lines, and how programs write it; pure."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

# Hiding shorter texts would blot out words that happen to contain them.
SHORTEST = 4
# Long secrets are looked for in pieces, so that a part of one is found as well. Pieces overlap, as
# base64 mixes the bits of neighbours.
_PIECE, _OVERLAP = 48, 3
# What the functions of several languages leave as it is in an address.
_SAFE_IN_URLS = ("", "/", "!'()*", "$&+:=@")
_URL_ESCAPE = re.compile("%[0-9A-F]{2}")
_URL_SAFE = str.maketrans("+/", "-_")
_HTML_IN_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
# Most of a long secret needs no look at how it would be escaped.
_WRITTEN_ALIKE_EVERYWHERE = re.compile(r"[A-Za-z0-9_.~-]*")
_WRITTEN_ALIKE_IN_JSON = re.compile(r"[A-Za-z0-9_.~ +/=:,;-]*")
# How many characters of base64 hold bits of the one or two bytes before a secret.
_MIXED = (0, 2, 3)


def is_too_short(secret: str) -> bool:
    """Whether a secret cannot be told from ordinary words, so that it is not hidden."""
    return len(secret.strip()) < SHORTEST


def forms(secret: str) -> frozenset[str]:
    """Every form of a secret; line breaks are left out of them, as text is searched without."""
    found: set[str] = set()
    for value in (secret, *_decoded(secret)):
        lines = [line.removesuffix("\r") for line in value.split("\n") if line.strip()]
        # Who prints the value prints its lines; who encodes it encodes the line breaks as well.
        found.update(_pieces("".join(lines).strip()))
        for part in {value.strip(), *(line.strip() for line in lines)}:
            for piece in _pieces(part):
                found.update(_encoded(piece))
    return frozenset(form for form in found if len(form) >= SHORTEST and "\n" not in form)


def _decoded(secret: str) -> Iterator[str]:
    """The text in a secret that is kept in base64, as `pipectl encrypt` does when it is asked."""
    try:
        decoded = base64.b64decode("".join(secret.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        return
    if decoded.replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        yield decoded


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
    yield text
    yield from _in_base64(text.encode("utf-8", "surrogateescape"))
    if not _WRITTEN_ALIKE_IN_JSON.fullmatch(text):
        in_json = _in_json(text)
        yield from in_json
        yield from (again for once in in_json for again in _in_json(once))
    if not _WRITTEN_ALIKE_EVERYWHERE.fullmatch(text):
        yield text.replace("'", "'\\''")
        yield from _in_urls(text)


def _in_json(text: str) -> tuple[str, ...]:
    ascii_only = json.dumps(text)[1:-1]
    unicode = json.dumps(text, ensure_ascii=False)[1:-1]
    return ascii_only, unicode, unicode.translate(_HTML_IN_JSON)


def _in_urls(text: str) -> Iterator[str]:
    for written in (quote_plus(text), *(quote(text, safe=safe) for safe in _SAFE_IN_URLS)):
        yield written
        yield _URL_ESCAPE.sub(lambda escape: escape[0].lower(), written)


def _in_base64(content: bytes) -> Iterator[str]:
    """What a content looks like inside of base64, at the beginning or after one or two bytes."""
    for before, mixed in enumerate(_MIXED):
        written = base64.b64encode(bytes(before) + content).decode().rstrip("=")
        # The last character may hold bits of what follows; where nothing follows it is known.
        for form in (written[mixed:], written[mixed : (before + len(content)) * 8 // 6]):
            yield form
            yield form.translate(_URL_SAFE)
