# SPDX-License-Identifier: Apache-2.0
"""A judgement of an object's health and why."""

from dataclasses import dataclass

from pipecd.sdk import Health


@dataclass(frozen=True)
class Verdict:
    """How an object is; the text says what is missing."""

    health: Health
    text: str = ""


FINE = Verdict(Health.HEALTHY)


def healthy(text: str = "") -> Verdict:
    """The object does what it is for."""
    return Verdict(Health.HEALTHY, text)


def unhealthy(text: str) -> Verdict:
    """The object does not do what it is for, or not yet."""
    return Verdict(Health.UNHEALTHY, text)


def unknown(text: str = "") -> Verdict:
    """Nothing tells how the object is."""
    return Verdict(Health.UNKNOWN, text)
