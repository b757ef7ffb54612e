# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Sprig's functions that encode and digest."""

import base64
import binascii
import hashlib
import json
import zlib
from typing import Any

from pipecd.gotemplate.builtins import Functions
from pipecd.gotemplate.values import Wrong


def _json(value: Any, *, indent: int | None = None, escape: bool = True) -> str:
    separators = None if indent else (",", ":")
    text = json.dumps(
        value, indent=indent, separators=separators, sort_keys=True, ensure_ascii=False
    )
    if not escape:
        return text
    # Go escapes what could end a script element.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _must_from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise Wrong(f"not JSON: {e}") from e


def _b64dec(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except binascii.Error as e:
        # Sprig puts the message where the value belongs.
        return str(e)


def _b32dec(text: str) -> str:
    try:
        return base64.b32decode(text).decode("utf-8", "replace")
    except binascii.Error as e:
        return str(e)


ENCODING: Functions = {
    "b64enc": lambda text: base64.b64encode(text.encode("utf-8", "surrogateescape")).decode(),
    "b64dec": _b64dec,
    "b32enc": lambda text: base64.b32encode(text.encode("utf-8", "surrogateescape")).decode(),
    "b32dec": _b32dec,
    "toJson": _json,
    "mustToJson": _json,
    "toRawJson": lambda value: _json(value, escape=False),
    "mustToRawJson": lambda value: _json(value, escape=False),
    "toPrettyJson": lambda value: _json(value, indent=2),
    "mustToPrettyJson": lambda value: _json(value, indent=2),
    "fromJson": _from_json,
    "mustFromJson": _must_from_json,
    "sha1sum": lambda text: hashlib.sha1(text.encode("utf-8", "surrogateescape")).hexdigest(),  # noqa: S324
    "sha256sum": lambda text: hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(),
    "sha512sum": lambda text: hashlib.sha512(text.encode("utf-8", "surrogateescape")).hexdigest(),
    "md5sum": lambda text: hashlib.md5(text.encode("utf-8", "surrogateescape")).hexdigest(),  # noqa: S324
    "adler32sum": lambda text: str(zlib.adler32(text.encode("utf-8", "surrogateescape"))),
}
