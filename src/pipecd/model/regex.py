# SPDX-License-Identifier: Apache-2.0
# The package re2 has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Regular expressions of users, in the syntax of Go and matched by RE2, in linear time.

Python's `re` backtracks: an expression such as `(a+)+b` takes exponential time. Every expression
that comes from a repository, a user or the network is compiled here.
"""

from collections.abc import Callable, Iterator
from typing import Any

import re2

# RE2 compiles a larger expression to an error, and needs no more for matching.
_MEMORY = 2 * 1024 * 1024
# Matching takes time in proportion to the size of the expression, too.
_MAX_LENGTH, _MAX_PROGRAM_SIZE = 10_000, 20_000


class RegexSyntaxError(ValueError):
    """The expression is not one of RE2's syntax, or too large."""


class Match:
    """One match; a group that took no part is None."""

    def __init__(self, match: Any) -> None:
        self._match = match
        self.start, self.end = self.span(0)

    def span(self, group: int) -> tuple[int, int]:
        """Returns the range of bytes of a group, (-1, -1) if it took no part."""
        start, end = self._match.span(group)
        return start, end

    def text(self, group: int | str = 0) -> str:
        """Returns the text of a group; empty if it took no part or does not exist."""
        try:
            content: bytes | None = self._match[_key(group)]
        except IndexError:
            return ""
        return _decoded(content or b"")


class Regex:
    """A compiled expression; texts may hold surrogate escapes where a file is not UTF-8."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MAX_LENGTH:
            raise RegexSyntaxError(f"it is longer than {_MAX_LENGTH} characters")
        options = re2.Options()
        options.max_mem = _MEMORY
        options.log_errors = False
        try:
            self._compiled: Any = re2.compile(_encoded(pattern), options)
        except re2.error as e:
            raise RegexSyntaxError(_reason(e)) from e
        if self._compiled.programsize > _MAX_PROGRAM_SIZE:
            raise RegexSyntaxError("it is too large")
        self.groups: int = self._compiled.groups

    def search(self, text: str) -> Match | None:
        """Returns the first match."""
        found = self._compiled.search(_encoded(text))
        return Match(found) if found is not None else None

    def matches(self, text: str) -> bool:
        """Whether the text contains a match; Go takes a byte that is not UTF-8 for U+FFFD."""
        valid = _encoded(text).decode("utf-8", "replace").encode()
        return self._compiled.search(valid) is not None

    def find_all(self, text: bytes) -> Iterator[Match]:
        """Yields the matches that do not overlap; none is empty directly after another one."""
        at, last_end = 0, -1
        while at <= len(text):
            found = self._compiled.search(text, at)
            if found is None:
                return
            match = Match(found)
            if match.end > match.start or match.end != last_end:
                yield match
            last_end = match.end
            at = match.end if match.end > at else at + _character_length(text, at)

    def replace_all(self, text: str, replacement: Callable[[Match], str]) -> str:
        """Returns the text with a replacement for every match."""
        content, parts, at = _encoded(text), list[bytes](), 0
        for match in self.find_all(content):
            parts += (content[at : match.start], _encoded(replacement(match)))
            at = match.end
        return _decoded(b"".join((*parts, content[at:])))

    def split(self, text: str, count: int) -> list[str]:
        """Splits around the matches into at most `count` parts, without a limit with -1."""
        if count == 0:
            return []
        content, parts, begin, end = _encoded(text), list[bytes](), 0, 0
        if not content and self._compiled.pattern:
            return [""]
        for match in self.find_all(content):
            if 0 < count <= len(parts) + 1:
                break
            end = match.start
            if match.end:
                parts.append(content[begin:end])
            begin = match.end
        if end != len(content):
            parts.append(content[begin:])
        return [_decoded(part) for part in parts]


def _key(group: int | str) -> int | bytes:
    return group if isinstance(group, int) else _encoded(group)


def _character_length(text: bytes, at: int) -> int:
    """Returns how many bytes the character at an index has."""
    end = at + 1
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end += 1
    return end - at


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _reason(error: Exception) -> str:
    [what] = error.args or ("not a regular expression",)
    return _decoded(what) if isinstance(what, bytes) else str(what)
