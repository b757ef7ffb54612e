# SPDX-License-Identifier: Apache-2.0
"""Which value an unquoted word of YAML stands for, exactly as upstream's reader decides."""

import math
import re

from pipecd.config.yamltree.node import Value

_YES = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_NO = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_NULL = ("", "~", "null", "Null", "NULL")
_WORDS: dict[str, Value] = {
    **dict.fromkeys(_YES, True),
    **dict.fromkeys(_NO, False),
    **dict.fromkeys(_NULL, None),
}
_ENDLESS = re.compile(r"[+-]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|0[oO]?(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))"
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
# A number of so many digits is beyond 64 bits in any base above 2.
_MOST_DIGITS = 64
_EXPONENT_FORM = 1e21


class EndlessNumber(ValueError):
    """The word is an infinity or no number at all, which JSON cannot say."""


def resolve(word: str) -> Value:
    """Return the value of an unquoted word; raise EndlessNumber for `.inf` and `.nan`."""
    if word in _WORDS:
        return _WORDS[word]
    if word[0] not in "+-.0123456789":
        return word
    if _ENDLESS.fullmatch(word):
        raise EndlessNumber(f"{word} is no number that can be used here")
    digits = word if word[0] == "." else word.replace("_", "")
    number = _integer(digits)
    if number is None and _FLOAT.fullmatch(digits):
        number = _fraction(digits)
    return word if number is None else number


def _integer(digits: str) -> int | None:
    """Return an integer that fits 64 bits, as larger ones become fractions."""
    match = _INTEGER.fullmatch(digits)
    if match is None:
        return None
    for name, base in _BASES.items():
        text = (match[name] or "").lstrip("0") if match[name] is not None else None
        if text is not None and len(text) <= _MOST_DIGITS:
            number = int(match["sign"] + (text or "0"), base)
            return number if -(2**63) <= number < 2**64 else None
    return None


def _fraction(digits: str) -> int | float | None:
    number = float(digits)
    if math.isinf(number):
        return None
    # A whole number written as a fraction, such as 1.0 or 1e3, is that whole number.
    if number.is_integer() and abs(number) < _EXPONENT_FORM:
        return int(number)
    return number
