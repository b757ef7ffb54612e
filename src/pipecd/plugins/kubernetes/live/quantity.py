# SPDX-License-Identifier: Apache-2.0
"""Amounts of memory and processor time in the one spelling that the API server gives back."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from pipecd.sdk.diff import is_list, is_map

# Maps of amounts, and single ones below the key that tells what they are of.
_AMOUNTS = frozenset(
    {
        *("limits", "requests", "capacity", "allocatable", "hard", "podFixed"),
        *("default", "defaultRequest", "max", "min", "maxLimitRequestRatio"),
    }
)
_AMOUNT: Mapping[str, frozenset[str]] = {
    "emptyDir": frozenset({"sizeLimit"}),
    "resourceFieldRef": frozenset({"divisor"}),
    "target": frozenset({"value", "averageValue"}),
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?")
_DECIMAL = {"m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def canonical(value: Any, under: str = "") -> Any:
    """Returns a document, or what stands in one under a key, with amounts written in one way."""
    if is_map(value):
        single = _AMOUNT.get(under, value.keys() if under in _AMOUNTS else ())
        return {
            key: quantity(below) if key in single else canonical(below, key)
            for key, below in value.items()
        }
    return [canonical(each) for each in value] if is_list(value) else value


def quantity(value: Any) -> Any:
    """Returns an amount in its canonical spelling: `1000m` is `1`, `0.5` is `500m`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return value
    number, suffix = match[1], match[2] or ""
    try:
        amount = Decimal(number)
    except InvalidOperation:
        return value
    if suffix in _BINARY:
        return _binary(amount * 2 ** _BINARY[suffix], value)
    exponent = _DECIMAL.get(suffix)
    amount = amount.scaleb(exponent) if exponent is not None else Decimal(f"{number}{suffix}")
    return _decimal(amount)


def _binary(amount: Decimal, value: Any) -> str:
    if amount != amount.to_integral_value():
        return str(value)
    whole = int(amount)
    for suffix, power in reversed(_BINARY.items()):
        if whole and whole % 2**power == 0:
            return f"{whole >> power}{suffix}"
    return str(whole)


def _decimal(amount: Decimal) -> str:
    if amount == 0:
        return "0"
    for suffix, exponent in reversed(_DECIMAL.items()):
        scaled = amount.scaleb(-exponent)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{suffix}"
    return f"{amount.normalize():f}"
