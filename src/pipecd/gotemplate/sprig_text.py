# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Sprig's functions on texts; arguments come in sprig's order, the piped value last."""

import posixpath
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from pipecd.gotemplate.builtins import Functions
from pipecd.gotemplate.printf import quote
from pipecd.gotemplate.values import Wrong, to_text

# A template that asks for more than this would only fill the memory.
_LONGEST = 10_000_000

_GROUP = re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")


def strings(value: Any) -> list[str]:
    """Any list as texts, nil left out, as sprig does for joins and sorts."""
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_text(item) for item in value if item is not None]
    return [to_text(value)]


def _repeat(count: int, text: str) -> str:
    if count < 0 or count * len(text) > _LONGEST:
        raise Wrong(f"repeat count {count} is out of range")
    return text * count


def _substr(start: int, end: int, text: str) -> str:
    if start < 0:
        return text[:end]
    return text[start:] if end < 0 or end > len(text) else text[start:end]


def _trunc(length: int, text: str) -> str:
    if length < 0:
        return text[length:] if len(text) + length > 0 else text
    return text[:length]


def _abbrev(width: int, text: str) -> str:
    return text if width < 4 or len(text) <= width else text[: width - 3] + "..."


def _title(text: str) -> str:
    return re.sub(r"(^|[^\w'])(\w)", lambda m: m[1] + m[2].upper(), text)


def _untitle(text: str) -> str:
    return re.sub(r"(^|\s)(\w)", lambda m: m[1] + m[2].lower(), text)


def _indent(spaces: int, text: str) -> str:
    if not 0 <= spaces <= 10_000:
        raise Wrong(f"{spaces} spaces are out of range")
    pad = " " * spaces
    return pad + text.replace("\n", "\n" + pad)


def _words(text: str) -> list[str]:
    separated = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3 \2\4", text)
    return [word for word in re.split(r"[\s_\-.]+", separated) if word]


def _split(separator: str, text: str) -> dict[str, str]:
    return {f"_{at}": part for at, part in enumerate(_cut(text, separator))}


def _splitn(separator: str, count: int, text: str) -> dict[str, str]:
    return {f"_{at}": part for at, part in enumerate(text.split(separator, count - 1))}


def _cut(text: str, separator: str) -> list[str]:
    return text.split(separator) if separator else list(text)


def _wrap(width: int, text: str) -> str:
    return "\n".join(textwrap.wrap(text, max(width, 1), break_long_words=False))


def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as e:
        raise Wrong(f"error parsing regexp: {e}") from e


def _replace_all(pattern: str, text: str, replacement: str) -> str:
    def expand(match: re.Match[str]) -> str:
        return _GROUP.sub(
            lambda m: _group(match, m[1] or m[2]) if m[1] or m[2] else "$", replacement
        )

    return _regex(pattern).sub(expand, text)


def _group(match: re.Match[str], name: str) -> str:
    try:
        return match[int(name) if name.isdigit() else name] or ""
    except IndexError:
        # Go replaces a group that does not exist by nothing.
        return ""


def _find_all(pattern: str, text: str, count: int) -> list[str]:
    found = [match[0] for match in _regex(pattern).finditer(text)]
    return found if count < 0 else found[:count]


def _regex_split(pattern: str, text: str, count: int) -> list[str]:
    if count == 0:
        return []
    parts: list[str] = []
    at = 0
    for match in _regex(pattern).finditer(text):
        if len(parts) + 1 == count:
            break
        parts.append(text[at : match.start()])
        at = match.end()
    return [*parts, text[at:]]


def _find(pattern: str, text: str) -> str:
    match = _regex(pattern).search(text)
    return match[0] if match else ""


def _extension(path: str) -> str:
    name = path.rpartition("/")[2]
    return name[name.rindex(".") :] if "." in name else ""


TEXT: Functions = {
    "trim": lambda text: text.strip(),
    "trimAll": lambda signs, text: text.strip(signs),
    "trimall": lambda signs, text: text.strip(signs),
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trimPrefix": lambda prefix, text: text.removeprefix(prefix),
    "upper": lambda text: text.upper(),
    "lower": lambda text: text.lower(),
    "title": _title,
    "untitle": _untitle,
    "repeat": _repeat,
    "substr": _substr,
    "nospace": lambda text: "".join(text.split()),
    "trunc": _trunc,
    "abbrev": _abbrev,
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
    "split": _split,
    "splitn": _splitn,
    "splitList": lambda separator, text: _cut(text, separator),
    "join": lambda separator, values: separator.join(strings(values)),
    "sortAlpha": lambda values: sorted(strings(values)),
    "toString": to_text,
    "toStrings": strings,
    "regexMatch": lambda pattern, text: _regex(pattern).search(text) is not None,
    "mustRegexMatch": lambda pattern, text: _regex(pattern).search(text) is not None,
    "regexFind": _find,
    "mustRegexFind": _find,
    "regexFindAll": _find_all,
    "mustRegexFindAll": _find_all,
    "regexReplaceAll": _replace_all,
    "mustRegexReplaceAll": _replace_all,
    "regexReplaceAllLiteral": lambda pattern, text, new: _regex(pattern).sub(lambda _: new, text),
    "mustRegexReplaceAllLiteral": lambda p, text, new: _regex(p).sub(lambda _: new, text),
    "regexSplit": _regex_split,
    "mustRegexSplit": _regex_split,
    "regexQuoteMeta": lambda text: re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text),
    "base": lambda path: posixpath.basename(path.rstrip("/")) or ("/" if path else "."),
    "dir": lambda path: posixpath.normpath(posixpath.dirname(path) or "."),
    "clean": lambda path: posixpath.normpath(path) if path else ".",
    "ext": _extension,
    "isAbs": lambda path: path.startswith("/"),
}
