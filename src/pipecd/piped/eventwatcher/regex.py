# SPDX-License-Identifier: Apache-2.0
"""Replaces what the first group of a regular expression matches.

Expressions use the syntax of RE2, like upstream's, and are run by Python, whose matching may take
exponential time; so they run in a process of their own with a timeout.
"""

import json
import re
import sys
import warnings
from pathlib import Path

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.eventwatcher.field_tree import TextEdit, apply_edits
from pipecd.program.run import capture

TIMEOUT = 10.0

_FINDER = """\
import json, re, sys
pattern, text = json.load(sys.stdin)
matches = re.compile(pattern, re.ASCII).finditer(text)
json.dump([match.span(1) for match in matches], sys.stdout)
"""

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_PART = re.compile(
    r"""
    \\Q (?P<literal>.*?) (?: \\E | \Z )
    | (?P<end> \\z )
    | (?P<property> \\[pPCX] )
    | \\ .
    | (?P<set> \[ \^? \]? (?: \[:\^?\w+:\] | \\. | [^\]\\] )* \] )
    | (?P<dollar> \$ )
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED = re.compile(r"\[:(\^?)(\w+):\]|\\.|\[|&&|~~|\|\|", re.DOTALL)
_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")


async def replace_regex(
    text: str, pattern: str, value: str, *, timeout_seconds: float = TIMEOUT
) -> str:
    """The text with a new value wherever the first group of an expression matches."""
    translated = translate(pattern)
    stdin = json.dumps([translated, text]).encode()
    try:
        done = await capture(
            [sys.executable, "-I", "-S", "-c", _FINDER],
            cwd=Path("/"),
            stdin=stdin,
            at_most=timeout_seconds,
        )
    except Unavailable as e:
        raise UserMistake(
            f"the expression {pattern} takes too long on this file",
            hint="avoid repetitions inside of repetitions",
        ) from e
    if done.code:
        raise Unavailable(f"the expression {pattern} could not be tried: exit code {done.code}")
    spans = [(start, end) for start, end in json.loads(done.stdout) if start >= 0]
    if not spans:
        raise UserMistake(f"its content doesn't match {pattern}")
    return apply_edits(text, [TextEdit(start, end, value) for start, end in spans])


def translate(pattern: str) -> str:
    """Translates an expression from the syntax of RE2 to that of Python."""
    flags = _FLAGS.match(pattern)
    if flags and set(flags[1]) - set("ims"):
        raise _unsupported(pattern, f"the flags {flags[1]} are not supported, use i, m and s")
    has_lines = bool(flags) and "m" in flags[1]

    def translated(match: re.Match[str]) -> str:
        if match["literal"] is not None:
            return re.escape(match["literal"])
        if match["property"]:
            raise _unsupported(
                pattern, f"{match['property']} is not supported, list the characters"
            )
        if match["set"]:
            return _set(match["set"], pattern)
        if match["end"] or (match["dollar"] and not has_lines):
            # The $ of Python also matches before a trailing line break.
            return r"\Z"
        return match[0]

    try:
        written = _PART.sub(translated, pattern)
        with warnings.catch_warnings():
            # Python warns about set operators that a future version may support.
            warnings.simplefilter("error", FutureWarning)
            compiled = re.compile(written, re.ASCII)
    except (re.error, FutureWarning, OverflowError, RecursionError) as e:
        raise _unsupported(pattern, str(e)) from e
    if not compiled.groups:
        raise UserMistake(
            f"capturing group not found in the given regex {pattern}",
            hint="put the part to replace in parentheses",
        )
    return written


def _set(text: str, pattern: str) -> str:
    """Translates a character set; operators of Python in it are escaped."""
    head = re.match(r"\[\^?\]?", text)
    at = head.end() if head else 1

    def written(match: re.Match[str]) -> str:
        if name := match[2]:
            if name not in _CLASSES or match[1]:
                raise _unsupported(pattern, f"{match[0]} is not supported, list the characters")
            return _CLASSES[name]
        return match[0] if match[0].startswith("\\") else "".join(f"\\{c}" for c in match[0])

    return text[:at].replace("[]", r"[\]").replace("^]", r"^\]") + _NAMED.sub(written, text[at:])


def _unsupported(pattern: str, why: str) -> UserMistake:
    return UserMistake(f"{pattern!r} is not a regular expression that can be used: {why}")
