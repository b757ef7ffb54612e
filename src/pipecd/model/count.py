# SPDX-License-Identifier: Apache-2.0
"""Counts and sizes in texts that clients send, and in those that people read."""

# Those of the largest 64-bit integer, such as the index of a log line.
_MAX_DIGITS = 19


def parse_count(text: str) -> int | None:
    """The number of decimal digits in ASCII; None if it is anything else, or too long for one.

    `int` also takes signs, spaces and other scripts, and refuses thousands of digits.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= _MAX_DIGITS else None


def exceeds(content_length: str, limit: int) -> bool:
    """Whether a `Content-Length` announces more than the limit; an empty one announces nothing."""
    if not content_length:
        return False
    length = parse_count(content_length)
    return length is None or length > limit


def counted(number: int, singular: str, plural: str = "") -> str:
    """`1 task` and `2 tasks`; `plural` is for other endings, such as `2 objects are`."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"
