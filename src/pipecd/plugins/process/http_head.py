# SPDX-License-Identifier: Apache-2.0
"""Reads the heads of HTTP/1.1 messages strictly and prepares them for forwarding.

What two readers could understand differently is refused, so that nobody can smuggle a request
past the router: bare line feeds, folded lines, blanks before a colon, two lengths, a length beside
chunks, other transfer codings.
"""

import re
from typing import NamedTuple

# Lengths of bodies that have no length.
CHUNKED, UNTIL_CLOSE = -1, -2
MOST_FIELDS = 128

_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_FIELDS = rb"(?:" + _NAME + rb":[\t\x20-\x7e\x80-\xff]*+\r\n)*+\r\n"
_REQUEST = re.compile(
    rb"(" + _NAME + rb") ([\x21-\x7e\x80-\xff]++) HTTP/([0-9])\.([0-9])\r\n" + _FIELDS
)
_RESPONSE = re.compile(
    rb"HTTP/1\.([0-9]) ([1-9][0-9][0-9])((?: [\t\x20-\x7e\x80-\xff]*+)?\r\n)" + _FIELDS
)
# The fields that the router reads or replaces, in the lower-case head. Programs that speak CGI see
# no difference between - and _, so neither does the router.
_FIELD_OF_REQUEST = re.compile(
    rb"\n(host|content[-_]length|transfer[-_]encoding|connection|keep[-_]alive|te|trailer|upgrade"
    rb"|expect|proxy(?:[-_]connection)?|http2[-_]settings|forwarded|x[-_]real[-_]ip"
    rb"|x[-_]forwarded[-_][a-z0-9_-]++)"
    rb":[ \t]*+([^\r]*+)\r"
)
_FIELD_OF_RESPONSE = re.compile(
    rb"\n(content-length|transfer-encoding|connection|keep-alive|proxy-connection|trailer|upgrade)"
    rb":[ \t]*+([^\r]*+)\r"
)
_KEPT = frozenset({b"host", b"content-length", b"expect"})
# What a proxy says about the client behind it, and what of that the router writes itself.
_OF_CLIENT = (b"x-real-ip", b"x-forwarded-")
_REWRITTEN = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
# HTTP/2 in a tunnel would carry requests past the router.
_HTTP_2 = (b"h2", b"http/")
_SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HOST = re.compile(rb"[A-Za-z0-9.\-_~%!$&'()*+,;=:\[\]]*")
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(/[^#]*|\?[^#]*)?", re.IGNORECASE)
# What a Connection field may name without being removed: it is removed or kept anyway.
_NOT_REMOVABLE = frozenset(
    {b"", b"close", b"keep-alive", b"upgrade", b"te", b"host", b"content-length", b"expect"}
)


class Malformed(Exception):
    """A message that the router does not forward; `status` answers a request like that."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Sender(NamedTuple):
    """Who sent a request: the client's address, and whether what it says of others counts."""

    address: bytes
    is_trusted: bool
    authority: bytes


class Request(NamedTuple):
    """A request; `head` is what the backend receives."""

    method: bytes
    is_http_1_0: bool
    keep_alive: bool
    length: int
    is_upgrade: bool
    head: bytes


class Response(NamedTuple):
    """A response; `head` lacks the fields about connection and chunks and the empty line."""

    status: int
    keep_alive: bool
    length: int
    head: bytes
    upgrade: bytes


def parse_request(head: bytes, sender: Sender) -> Request:
    """Reads the head of a request, from the request line to the empty line."""
    line = _REQUEST.fullmatch(head)
    if line is None:
        raise Malformed(400, "the head of the request is malformed")
    method, target, major, minor = line.groups()
    if major != b"1":
        raise Malformed(505, "the router speaks HTTP/1.1")
    if head.count(b"\n") > MOST_FIELDS + 2:
        raise Malformed(431, f"the request has more than {MOST_FIELDS} header fields")
    is_http_1_0 = minor == b"0"
    values, fields = _known_fields(head, sender)
    length = _length_of_request(values, is_http_1_0)
    host = values.get(b"host")
    if target[0] != 0x2F:
        target, host, fields = _other_target(method, target, values, fields)
    if host is None:
        if not is_http_1_0:
            raise Malformed(400, "the request has no Host")
        host = sender.authority
        fields += b"Host: " + host + b"\r\n"
    elif _HOST.fullmatch(host) is None:
        raise Malformed(400, "the Host of the request is malformed")
    if b"expect" in values and values[b"expect"].lower() != b"100-continue":
        raise Malformed(417, "the router knows no expectation but 100-continue")
    keep_alive, upgrade, removed = _connection_options(values, is_http_1_0)
    if removed:
        fields = _without(fields, removed)
    end = b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n" if upgrade else b"\r\n"
    if length == CHUNKED:
        end = b"Transfer-Encoding: chunked\r\n" + end
    start = method + b" " + target + b" HTTP/1.1\r\n"
    new = b"".join((start, fields, _forwarded(values, sender, host), end))
    return Request(method, is_http_1_0, keep_alive, length, bool(upgrade), new)


def _connection_options(
    values: dict[bytes, bytes], is_http_1_0: bool
) -> tuple[bool, bytes, set[bytes]]:
    """Returns whether the connection stays, the protocol to change to, and fields to remove."""
    connection = values.get(b"connection")
    if connection is None:
        return not is_http_1_0, b"", set()
    options = {option.strip(b" \t") for option in connection.lower().split(b",")}
    keep_alive = b"keep-alive" in options if is_http_1_0 else b"close" not in options
    upgrade = b""
    if b"upgrade" in options and not is_http_1_0:
        offered = (each.strip(b" \t") for each in values.get(b"upgrade", b"").split(b","))
        upgrade = b", ".join(
            each for each in offered if each and not each.lower().startswith(_HTTP_2)
        )
    return keep_alive, upgrade, options - _NOT_REMOVABLE


def _known_fields(head: bytes, sender: Sender) -> tuple[dict[bytes, bytes], bytes]:
    """Returns the values of the fields that the router knows, and all fields that it forwards."""
    values: dict[bytes, bytes] = {}
    pieces: list[bytes] = []
    at = head.index(b"\n") + 1
    for found in _FIELD_OF_REQUEST.finditer(head.lower(), at - 1):
        name = found[1]
        start, end = found.span(2)
        if b"_" not in name:
            value = head[start:end].rstrip(b" \t")
            if name in values:
                if name in _SINGLE:
                    raise Malformed(400, f"the request has two fields {name.decode()}")
                value = values[name] + b", " + value
            values[name] = value
            if name in _KEPT or (sender.is_trusted and _is_kept_of_proxy(name)):
                continue
        pieces.append(head[at : found.start() + 1])
        at = end + 2
    pieces.append(head[at:-2])
    return values, b"".join(pieces)


def _is_kept_of_proxy(name: bytes) -> bool:
    return name.startswith(_OF_CLIENT) and name not in _REWRITTEN


def _length_of_request(values: dict[bytes, bytes], is_http_1_0: bool) -> int:
    coding, length = values.get(b"transfer-encoding"), values.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise Malformed(400, "the request has both Content-Length and Transfer-Encoding")
        if is_http_1_0:
            raise Malformed(400, "an HTTP/1.0 request has no Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise Malformed(501, "the router knows no transfer coding but chunked")
        return CHUNKED
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise Malformed(400, "the Content-Length of the request is malformed")
    return int(length)


def _other_target(
    method: bytes, target: bytes, values: dict[bytes, bytes], fields: bytes
) -> tuple[bytes, bytes | None, bytes]:
    """Reads a target that is no path: the one of OPTIONS, or a whole URL."""
    if method == b"OPTIONS" and target == b"*":
        return target, values.get(b"host"), fields
    url = _ABSOLUTE.fullmatch(target)
    if url is None:
        status = 405 if method == b"CONNECT" else 400
        raise Malformed(status, "the target of the request is neither a path nor an http URL")
    host, path = url[1], url[2] or b"/"
    fields = _without(fields, {b"host"}) + b"Host: " + host + b"\r\n"
    return path if path.startswith(b"/") else b"/" + path, host, fields


def _without(fields: bytes, names: set[bytes]) -> bytes:
    lines = fields.split(b"\r\n")
    return b"\r\n".join(line for line in lines if line.partition(b":")[0].lower() not in names)


def _forwarded(values: dict[bytes, bytes], sender: Sender, host: bytes) -> bytes:
    address, protocol = sender.address, b"http"
    own = b""
    if sender.is_trusted:
        if prior := values.get(b"x-forwarded-for"):
            address = prior + b", " + address
        protocol = values.get(b"x-forwarded-proto") or protocol
        host = values.get(b"x-forwarded-host") or host
        if standard := values.get(b"forwarded"):
            own = b"Forwarded: " + standard + b"\r\n"
    return b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n%b" % (
        address, protocol, host, own,
    )  # fmt: skip


def parse_response(head: bytes, method: bytes) -> Response:
    """Reads the head of the response to a request with this method."""
    line = _RESPONSE.fullmatch(head)
    if line is None:
        raise Malformed(502, "the program's answer is malformed")
    status = int(line[2])
    values: dict[bytes, bytes] = {}
    start, at = line.end(3), line.end(3)
    pieces = [b"HTTP/1.1 ", line[2], line[3]]
    for found in _FIELD_OF_RESPONSE.finditer(head.lower(), start - 1):
        name = found[1]
        begin, end = found.span(2)
        value = head[begin:end].rstrip(b" \t")
        if name in values:
            if name in _SINGLE:
                raise Malformed(502, f"the program's answer has two fields {name.decode()}")
            value = values[name] + b", " + value
        values[name] = value
        if name != b"content-length":
            pieces.append(head[at : found.start() + 1])
            at = end + 2
    pieces.append(head[at:-2])
    connection = values.get(b"connection", b"").lower()
    keep_alive = b"keep-alive" in connection if line[1] == b"0" else b"close" not in connection
    fields = b"".join(pieces)
    if removed := {o.strip(b" \t") for o in connection.split(b",")} - _NOT_REMOVABLE:
        fields = _without(fields, removed)
    length = _length_of_response(values, status, method)
    return Response(
        status,
        keep_alive and length != UNTIL_CLOSE,
        length,
        fields,
        values.get(b"upgrade", b""),
    )


def _length_of_response(values: dict[bytes, bytes], status: int, method: bytes) -> int:
    coding, length = values.get(b"transfer-encoding"), values.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise Malformed(502, "the program's answer has two lengths")
        if coding.lower() != b"chunked":
            raise Malformed(502, "the program's answer has an unknown transfer coding")
    if length is not None and _LENGTH.fullmatch(length) is None:
        raise Malformed(502, "the program's answer has a malformed Content-Length")
    if method == b"HEAD" or status in {204, 304} or status < 200:
        return 0
    if coding is not None:
        return CHUNKED
    return UNTIL_CLOSE if length is None else int(length)
