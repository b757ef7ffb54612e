# SPDX-License-Identifier: Apache-2.0
"""Replaces what the first group of a regular expression matches."""

from pipecd.model.errors import UserMistake
from pipecd.model.regex import Regex, RegexSyntaxError


def replace_regex(text: str, pattern: str, value: str) -> str:
    """Returns the text with a new value wherever the first group of an expression matches."""
    try:
        regex = Regex(pattern)
    except RegexSyntaxError as e:
        raise UserMistake(f"{pattern!r} is not a regular expression: {e}") from e
    if not regex.groups:
        raise UserMistake(
            f"capturing group not found in the given regex {pattern}",
            hint="put the part to replace in parentheses",
        )
    content, parts, at = text.encode(), list[bytes](), 0
    for match in regex.find_all(content):
        start, end = match.span(1)
        if start >= 0:
            parts += (content[at:start], value.encode())
            at = end
    if not parts:
        raise UserMistake(f"its content doesn't match {pattern}")
    return b"".join((*parts, content[at:])).decode(errors="replace")
