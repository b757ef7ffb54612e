# SPDX-License-Identifier: Apache-2.0
"""Path patterns as users write them in triggers, skips and event watchers: Docker-style globs.

`*` stays within one path element, `**` crosses them, `?` is one character, a leading `!` excludes.
A pattern that names a directory also matches everything below it. Other characters that mean
something in a regular expression keep that meaning, as upstream lets them through.
"""

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from pipecd.model.errors import UserMistake

_SIGNS = {"?": "[^/]", ".": r"\.", "$": r"\$"}


@dataclass(frozen=True)
class PathPattern:
    """One pattern, ready to be tried on paths relative to the root of a repository."""

    regex: re.Pattern[str]
    elements: int
    excludes: bool

    def fits(self, path: str) -> bool:
        """Whether the path, or the directory above it at the depth of the pattern, fits."""
        if self.regex.search(path):
            return True
        parents = path.split("/")[:-1]
        if len(parents) < self.elements:
            return False
        return self.regex.search("/".join(parents[: self.elements])) is not None


@dataclass(frozen=True)
class PathPatterns:
    """Several patterns as one: some inclusion fits and no exclusion does."""

    patterns: tuple[PathPattern, ...]

    def match(self, path: str) -> bool:
        fitting = [pattern for pattern in self.patterns if pattern.fits(path)]
        return bool(fitting) and not any(pattern.excludes for pattern in fitting)

    def match_all(self, paths: Iterable[str]) -> bool:
        return all(self.match(path) for path in paths)


def path_patterns(patterns: Iterable[str]) -> PathPatterns:
    """Compiles patterns; a bad one is the mistake of whoever wrote it."""
    compiled = (compile_pattern(pattern.strip()) for pattern in patterns if pattern.strip())
    return PathPatterns(tuple(compiled))


@lru_cache(maxsize=1000)
def compile_pattern(pattern: str) -> PathPattern:
    """Compiles one pattern that is not blank."""
    excludes = pattern.startswith("!")
    glob = _clean(pattern)
    if excludes:
        glob = glob[1:]
        if not glob:
            raise UserMistake('illegal exclusion pattern: "!"', hint="write a path behind the !")
    if not _is_well_formed(glob):
        raise _bad(pattern)
    try:
        # Anchors do not embrace alternatives: upstream writes none either.
        regex = re.compile(f"^{_to_regex(glob)}\\Z")
    except (re.error, OverflowError) as e:
        raise _bad(pattern) from e
    return PathPattern(regex, len(glob.split("/")), excludes)


def _bad(pattern: str) -> UserMistake:
    return UserMistake(f"syntax error in pattern {pattern!r}", hint="close brackets, escape \\")


def _clean(pattern: str) -> str:
    clean = posixpath.normpath(pattern)
    # POSIX lets two leading slashes stand; Go does not.
    return clean.replace("//", "/", 1) if clean.startswith("//") else clean


def _to_regex(glob: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(glob):
        part, used = _translate(glob, at)
        parts.append(part)
        at += used
    return "".join(parts)


def _translate(glob: str, at: int) -> tuple[str, int]:
    """The regular expression for what stands at a place, and how much of the glob it took."""
    match glob[at]:
        case "*" if glob.startswith("**", at):
            used = 3 if glob.startswith("**/", at) else 2
            return (".*" if at + used >= len(glob) else "(.*/)?"), used
        case "*":
            return "[^/]*", 1
        case "[":
            end = _end_of_class(glob, at + 1)
            # Doubled signs mean set operations to Python only.
            return "[" + re.sub(r"(?<!\\)([\[&~|])", r"\\\1", glob[at + 1 : end]), end - at
        case "\\" if at + 1 < len(glob):
            return glob[at : at + 2], 2
        case c:
            return _SIGNS.get(c, c), 1


def _is_well_formed(glob: str) -> bool:
    """Whether brackets and escapes are complete, as a shell-style matcher demands."""
    at = 0
    while at < len(glob):
        if glob[at] == "\\":
            at += 2
            if at > len(glob):
                return False
        elif glob[at] == "[":
            end = _end_of_class(glob, at + 1)
            if end < 0:
                return False
            at = end
        else:
            at += 1
    return True


def _end_of_class(glob: str, at: int) -> int:
    """Where a bracket expression ends, or -1 when it is malformed."""
    at += glob.startswith("^", at)
    first = True
    while first or not glob.startswith("]", at):
        at = _after_character(glob, at)
        if at >= 0 and glob.startswith("-", at):
            at = _after_character(glob, at + 1)
        if at < 0:
            return -1
        first = False
    return at + 1


def _after_character(glob: str, at: int) -> int:
    if at >= len(glob) or glob[at] in "-]":
        return -1
    if glob[at] == "\\":
        at += 1
    return at + 1 if at + 1 < len(glob) else -1
