# SPDX-License-Identifier: Apache-2.0
"""Path patterns of triggers, skipOn and event watchers: Docker-style globs.

`*` stays within one path element, `**` crosses them, `?` is one character, a leading `!` excludes.
A pattern that matches a directory also matches everything below it. Other special characters of
regular expressions keep their meaning, as upstream does not escape them.
"""

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from pipecd.model.errors import UserMistake
from pipecd.model.regex import Regex, RegexSyntaxError

_ESCAPES = {"?": "[^/]", ".": r"\.", "$": r"\$"}


@dataclass(frozen=True)
class PathPattern:
    """A compiled pattern for paths relative to the root of a repository."""

    regex: Regex
    elements: int
    excludes: bool

    def matches(self, path: str) -> bool:
        """Whether the path, or its parent directory at the depth of the pattern, matches."""
        if self.regex.matches(path):
            return True
        parents = path.split("/")[:-1]
        if len(parents) < self.elements:
            return False
        return self.regex.matches("/".join(parents[: self.elements]))


@dataclass(frozen=True)
class PathPatterns:
    """Several patterns as one: an inclusion matches and no exclusion does."""

    patterns: tuple[PathPattern, ...]

    def match(self, path: str) -> bool:
        matching = [pattern for pattern in self.patterns if pattern.matches(path)]
        return bool(matching) and not any(pattern.excludes for pattern in matching)

    def match_all(self, paths: Iterable[str]) -> bool:
        return all(self.match(path) for path in paths)


def path_patterns(patterns: Iterable[str]) -> PathPatterns:
    """Compiles patterns; an invalid one raises `UserMistake`."""
    compiled = (compile_pattern(pattern.strip()) for pattern in patterns if pattern.strip())
    return PathPatterns(tuple(compiled))


@lru_cache(maxsize=200)
def compile_pattern(pattern: str) -> PathPattern:
    """Compiles one pattern that is not blank."""
    excludes = pattern.startswith("!")
    glob = posixpath.normpath(pattern)
    if glob.startswith("//"):
        # POSIX keeps two leading slashes; Go does not.
        glob = glob.replace("//", "/", 1)
    if excludes:
        glob = glob[1:]
        if not glob:
            raise UserMistake('illegal exclusion pattern: "!"', hint="write a path behind the !")
    if not _is_well_formed(glob):
        raise _syntax_error(pattern)
    expression, at = "", 0
    while at < len(glob):
        part, used = _translate(glob, at)
        expression += part
        at += used
    try:
        # As in upstream, the anchors do not enclose alternatives (`a|b`).
        regex = Regex(f"^{expression}$")
    except RegexSyntaxError as e:
        raise _syntax_error(pattern) from e
    return PathPattern(regex, len(glob.split("/")), excludes)


def _syntax_error(pattern: str) -> UserMistake:
    return UserMistake(f"syntax error in pattern {pattern!r}", hint="close brackets, escape \\")


def _translate(glob: str, at: int) -> tuple[str, int]:
    """Returns the regular expression for the glob at an index, and the length translated."""
    match glob[at]:
        case "*" if glob.startswith("**", at):
            used = 3 if glob.startswith("**/", at) else 2
            return (".*" if at + used >= len(glob) else "(.*/)?"), used
        case "*":
            return "[^/]*", 1
        case "[":
            end = _end_of_class(glob, at + 1)
            return glob[at:end], end - at
        case "\\" if at + 1 < len(glob):
            return glob[at : at + 2], 2
        case c:
            return _ESCAPES.get(c, c), 1


def _is_well_formed(glob: str) -> bool:
    """Whether brackets and escapes are complete, as a shell-style matcher requires."""
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
    """Returns the index behind a bracket expression, or -1 if it is malformed."""
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
