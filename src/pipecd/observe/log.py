# SPDX-License-Identifier: Apache-2.0
"""Logging to standard error: events with fixed field names, in one of three encodings."""

import json
import logging
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from pipecd.model.errors import UserMistake
from pipecd.observe.version import build_version

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "dpanic": logging.CRITICAL,
    "panic": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
_SEVERITIES = {
    "debug": "DEBUG",
    "info": "INFO",
    "warning": "WARNING",
    "error": "ERROR",
    "critical": "CRITICAL",
}


def configure(
    level: str = "info",
    encoding: str = "humanize",
    *,
    program: str = "pipecd",
    to: TextIO | None = None,
) -> None:
    """Sets up logging for the process; called once by the command lines."""
    if level not in _LEVELS:
        raise UserMistake(f'unrecognized level: "{level}"', hint=f"use one of {', '.join(_LEVELS)}")
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    match encoding:
        case "json":
            processors.append(_Json(program))
        case "console":
            processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
            processors.append(structlog.dev.ConsoleRenderer(colors=False))
        case "humanize":
            processors.append(_humanize)
        case _:
            raise UserMistake(
                f'no encoder registered for name "{encoding}"', hint="use json, console or humanize"
            )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=to or cast("TextIO", _Stderr())),
        cache_logger_on_first_use=False,
    )


@contextmanager
def masking(mask: Callable[[str], str]) -> Generator[None]:
    """Masks secrets in every log event with `mask` while the block runs."""

    def mask_event(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        for key, value in event.items():
            text = str(value)
            if (masked := mask(text)) != text:
                event[key] = masked
        return event

    *before, encoder = structlog.get_config()["processors"]
    structlog.configure(processors=[*before, mask_event, encoder])
    try:
        yield
    finally:
        current = structlog.get_config()["processors"]
        structlog.configure(processors=[p for p in current if p is not mask_event])


class _Stderr:
    """The current standard error, which tests replace."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class _Json:
    """Encodes an event as a line of JSON, with the keys of upstream for log collectors."""

    def __init__(self, program: str) -> None:
        self._context = {"service": program, "version": build_version()}
        self._program = program

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        level = str(event.pop("level", "info"))
        record: dict[str, Any] = {
            "severity": _SEVERITIES.get(level, "INFO"),
            "eventTime": time.time(),
            "logger": self._program,
            "message": event.pop("event", ""),
            "serviceContext": self._context,
        }
        return json.dumps(record | dict(event), default=str)


def _humanize(logger: WrappedLogger, name: str, event: EventDict) -> str:
    """Encodes an event as its message, a tab and the fields as JSON, if there are any."""
    message = str(event.pop("event", ""))
    event.pop("level", None)
    trace = event.pop("exception", None)
    line = f"{message}\t{json.dumps(dict(event), default=str)}" if event else message
    return f"{line}\n{trace}" if trace else line
