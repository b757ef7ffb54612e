# SPDX-License-Identifier: Apache-2.0
"""A judgement of an object's health and why."""

from dataclasses import dataclass

from pipecd.sdk import Health


@dataclass(frozen=True)
class Verdict:
    """How an object is; the text says what is missing, and a final one stays as it is."""

    health: Health
    text: str = ""
    is_final: bool = False


FINE = Verdict(Health.HEALTHY)


def healthy(text: str = "") -> Verdict:
    """The object does what it is for."""
    return Verdict(Health.HEALTHY, text)


def unhealthy(text: str) -> Verdict:
    """The object does not do what it is for, or not yet."""
    return Verdict(Health.UNHEALTHY, text)


def failed(text: str) -> Verdict:
    """The object did not do what it is for, and never will."""
    return Verdict(Health.UNHEALTHY, text, is_final=True)


def unknown(text: str = "") -> Verdict:
    """Nothing tells how the object is."""
    return Verdict(Health.UNKNOWN, text)
