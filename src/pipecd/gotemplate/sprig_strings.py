# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Sprig's functions on strings: text, regular expressions, paths, encodings and digests.

The arguments are in sprig's order, the piped value last. Functions are named as sprig's
documentation names them.
"""

import base64
import hashlib
import json
import posixpath
import re
import textwrap
import zlib
from collections.abc import Sequence
from itertools import islice
from typing import Any

from pipecd.gotemplate.builtins import Functions
from pipecd.gotemplate.printf import quote
from pipecd.gotemplate.values import FunctionError, to_text
from pipecd.model.regex import Match, Regex, RegexSyntaxError

# Longer texts would only fill the memory.
_MAX_LENGTH = 10_000_000

_GROUP = re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")


def to_strings(value: Any) -> list[str]:
    """Returns the items of a list as strings, without nil; a single value becomes one item."""
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_text(item) for item in value if item is not None]
    return [to_text(value)]


def repeat(count: int, text: str) -> str:
    """`repeat 3 "ab"` is `ababab`."""
    if count < 0 or count * len(text) > _MAX_LENGTH:
        raise FunctionError(f"repeat count {count} is out of range")
    return text * count


def substr(start: int, end: int, text: str) -> str:
    """`substr 0 5 "hello world"` is `hello`; a negative bound is the end of the text."""
    if start < 0:
        return text[:end]
    return text[start:] if end < 0 or end > len(text) else text[start:end]


def trunc(length: int, text: str) -> str:
    """`trunc 5 "hello world"` is `hello`, `trunc -5 "hello world"` is `world`."""
    if length < 0:
        return text[length:] if len(text) + length > 0 else text
    return text[:length]


def _indent(spaces: int, text: str) -> str:
    if not 0 <= spaces <= 10_000:
        raise FunctionError(f"{spaces} spaces are out of range")
    pad = " " * spaces
    return pad + text.replace("\n", "\n" + pad)


def _words(text: str) -> list[str]:
    separated = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3 \2\4", text)
    return [word for word in re.split(r"[\s_\-.]+", separated) if word]


def _split_list(separator: str, text: str) -> list[str]:
    return text.split(separator) if separator else list(text)


def _numbered(parts: list[str]) -> dict[str, str]:
    """Returns parts under the keys that sprig gives them: `_0`, `_1`, …"""
    return {f"_{i}": part for i, part in enumerate(parts)}


def _wrap(width: int, text: str) -> str:
    return "\n".join(textwrap.wrap(text, max(width, 1), break_long_words=False))


def _compile(pattern: str) -> Regex:
    try:
        return Regex(pattern)
    except RegexSyntaxError as e:
        raise FunctionError(f"error parsing regexp: {e}") from e


def regex_replace_all(pattern: str, text: str, replacement: str) -> str:
    """`regexReplaceAll "a(x*)b" "-ab-axxb-" "${1}W"` is `-W-xxW-`."""

    def expand(match: Match) -> str:
        def group(reference: re.Match[str]) -> str:
            name = reference[1] or reference[2]
            if not name:
                return "$"
            # Go replaces a group that does not exist by an empty string.
            return match.text(int(name) if name.isdigit() else name)

        return _GROUP.sub(group, replacement)

    return _compile(pattern).replace_all(text, expand)


def regex_find(pattern: str, text: str) -> str:
    """Returns the first match, or an empty string."""
    match = _compile(pattern).search(text)
    return match.text() if match else ""


def regex_find_all(pattern: str, text: str, count: int) -> list[str]:
    """Returns the first `count` matches, all with -1."""
    matches = _compile(pattern).find_all(_bytes(text))
    return [match.text() for match in islice(matches, count if count >= 0 else None)]


def regex_split(pattern: str, text: str, count: int) -> list[str]:
    """Splits around matches into at most `count` parts, without a limit with -1."""
    return _compile(pattern).split(text, count)


def regex_replace_all_literal(pattern: str, text: str, replacement: str) -> str:
    """Replaces matches by a text in which `$` has no meaning."""
    return _compile(pattern).replace_all(text, lambda _: replacement)


def regex_match(pattern: str, text: str) -> bool:
    """Whether the text contains a match."""
    return _compile(pattern).matches(text)


def ext(path: str) -> str:
    """Returns the file extension with its dot."""
    name = path.rpartition("/")[2]
    return name[name.rindex(".") :] if "." in name else ""


STRINGS: Functions = {
    "trim": lambda text: text.strip(),
    "trimAll": lambda cutset, text: text.strip(cutset),
    "trimall": lambda cutset, text: text.strip(cutset),
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trimPrefix": lambda prefix, text: text.removeprefix(prefix),
    "upper": lambda text: text.upper(),
    "lower": lambda text: text.lower(),
    "title": lambda text: re.sub(r"(^|[^\w'])(\w)", lambda m: m[1] + m[2].upper(), text),
    "untitle": lambda text: re.sub(r"(^|\s)(\w)", lambda m: m[1] + m[2].lower(), text),
    "repeat": repeat,
    "substr": substr,
    "nospace": lambda text: "".join(text.split()),
    "trunc": trunc,
    "abbrev": lambda width, text: (
        text if width < 4 or len(text) <= width else text[: width - 3] + "..."
    ),
    "initials": lambda text: "".join(word[0] for word in text.split()),
    "swapcase": lambda text: text.swapcase(),
    "wrap": _wrap,
    "wrapWith": lambda width, separator, text: _wrap(width, text).replace("\n", separator),
    "contains": lambda part, text: part in text,
    "hasPrefix": lambda prefix, text: text.startswith(prefix),
    "hasSuffix": lambda suffix, text: text.endswith(suffix),
    "quote": lambda *values: " ".join(quote(to_text(v)) for v in values if v is not None),
    "squote": lambda *values: " ".join(f"'{to_text(v)}'" for v in values if v is not None),
    "cat": lambda *values: " ".join(to_text(v) for v in values if v is not None),
    "indent": _indent,
    "nindent": lambda spaces, text: "\n" + _indent(spaces, text),
    "replace": lambda old, new, text: text.replace(old, new),
    "plural": lambda one, many, count: one if count == 1 else many,
    "snakecase": lambda text: "_".join(_words(text)).lower(),
    "kebabcase": lambda text: "-".join(_words(text)).lower(),
    "camelcase": lambda text: "".join(word.capitalize() for word in _words(text)),
    "split": lambda separator, text: _numbered(_split_list(separator, text)),
    "splitn": lambda separator, count, text: _numbered(text.split(separator, count - 1)),
    "splitList": _split_list,
    "join": lambda separator, values: separator.join(to_strings(values)),
    "sortAlpha": lambda values: sorted(to_strings(values)),
    "toString": to_text,
    "toStrings": to_strings,
    "regexMatch": regex_match,
    "mustRegexMatch": regex_match,
    "regexFind": regex_find,
    "mustRegexFind": regex_find,
    "regexFindAll": regex_find_all,
    "mustRegexFindAll": regex_find_all,
    "regexReplaceAll": regex_replace_all,
    "mustRegexReplaceAll": regex_replace_all,
    "regexReplaceAllLiteral": regex_replace_all_literal,
    "mustRegexReplaceAllLiteral": regex_replace_all_literal,
    "regexSplit": regex_split,
    "mustRegexSplit": regex_split,
    "regexQuoteMeta": lambda text: re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text),
    "base": lambda path: posixpath.basename(path.rstrip("/")) or ("/" if path else "."),
    "dir": lambda path: posixpath.normpath(posixpath.dirname(path) or "."),
    "clean": lambda path: posixpath.normpath(path) if path else ".",
    "ext": ext,
    "isAbs": lambda path: path.startswith("/"),
}


def _json(value: Any, *, indent: int | None = None, escape: bool = True) -> str:
    separators = None if indent else (",", ":")
    text = json.dumps(
        value, indent=indent, separators=separators, sort_keys=True, ensure_ascii=False
    )
    if not escape:
        return text
    # Go's JSON is safe inside of HTML.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def from_json(text: str) -> Any:
    """Parses JSON; nil if it is invalid."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def must_from_json(text: str) -> Any:
    """Parses JSON; an error if it is invalid."""
    try:
        return json.loads(text)
    except ValueError as e:
        raise FunctionError(f"not JSON: {e}") from e


def b64dec(text: str) -> str:
    """Decodes base64; for invalid input sprig returns the error message as the value."""
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except ValueError as e:
        return str(e)


def b32dec(text: str) -> str:
    """Decodes base32; for invalid input sprig returns the error message as the value."""
    try:
        return base64.b32decode(text).decode("utf-8", "replace")
    except ValueError as e:
        return str(e)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


ENCODING: Functions = {
    "b64enc": lambda text: base64.b64encode(_bytes(text)).decode(),
    "b64dec": b64dec,
    "b32enc": lambda text: base64.b32encode(_bytes(text)).decode(),
    "b32dec": b32dec,
    "toJson": _json,
    "mustToJson": _json,
    "toRawJson": lambda value: _json(value, escape=False),
    "mustToRawJson": lambda value: _json(value, escape=False),
    "toPrettyJson": lambda value: _json(value, indent=2),
    "mustToPrettyJson": lambda value: _json(value, indent=2),
    "fromJson": from_json,
    "mustFromJson": must_from_json,
    "sha1sum": lambda text: hashlib.sha1(_bytes(text)).hexdigest(),  # noqa: S324
    "sha256sum": lambda text: hashlib.sha256(_bytes(text)).hexdigest(),
    "sha512sum": lambda text: hashlib.sha512(_bytes(text)).hexdigest(),
    "md5sum": lambda text: hashlib.md5(_bytes(text)).hexdigest(),  # noqa: S324
    "adler32sum": lambda text: str(zlib.adler32(_bytes(text))),
}
