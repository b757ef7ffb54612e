# SPDX-License-Identifier: Apache-2.0
"""When a control plane sums up what happened."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from pipecd.config.duration import Duration
from pipecd.config.spec import Spec

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DESCRIPTORS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_PART = re.compile(r"(?:[*?]|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, MONTHS),
    ("day of week", 0, 6, DAYS),
)


def check_schedule(text: str) -> str:
    """Return `text` when it is a five-field cron line or one of the `@` descriptors."""
    if text.startswith("@every "):
        if Duration.parse(text.removeprefix("@every ").strip()) <= 0:
            raise ValueError(f"the period of {text!r} must be longer than 0s")
        return text
    if text in DESCRIPTORS:
        return text
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            f"{text!r} is no schedule, write five cron fields such as '0 * * * *', or @every 1h"
        )
    for field, (name, low, high, names) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            _check_part(part, f"{name} of {text!r}", (low, high), names)
    return text


def _check_part(part: str, where: str, bounds: tuple[int, int], names: tuple[str, ...]) -> None:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is no {where}")
    ends = [_number(end, where, bounds, names) for end in match.group(1, 2) if end]
    if ends != sorted(ends):
        raise ValueError(f"{part!r} in the {where} ends before it begins")
    if match.group(3) and int(match.group(3)) == 0:
        raise ValueError(f"the step of {part!r} in the {where} must be 1 or more")


def _number(word: str, where: str, bounds: tuple[int, int], names: tuple[str, ...]) -> int:
    low, high = bounds
    if word.lower() in names:
        return names.index(word.lower()) + low
    if not word.isdecimal() or not low <= int(word) <= high:
        raise ValueError(f"{word!r} is no {where}, write a number from {low} to {high}")
    return int(word)


Schedule = Annotated[str, AfterValidator(check_schedule)]


class ApplicationInsightSpec(Spec):
    """When the number of applications is summed up."""

    enabled: bool = True
    schedule: Schedule = "0 * * * *"


class DeploymentInsightSpec(Spec):
    """When deployments are summed up, and how many go into one chunk."""

    enabled: bool = True
    schedule: Schedule = "30 * * * *"
    chunk_max_count: int = Field(default=1000, ge=0)


class InsightCollectorSpec(Spec):
    """When insights are collected; times are UTC."""

    application: ApplicationInsightSpec = ApplicationInsightSpec()
    deployment: DeploymentInsightSpec = DeploymentInsightSpec()
