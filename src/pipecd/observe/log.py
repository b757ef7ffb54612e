# SPDX-License-Identifier: Apache-2.0
"""Logging: events with fixed field names, on standard error, in one of three encodings."""

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
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, *_encoders(encoding, program)],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=to or cast("TextIO", _Stderr())),
        cache_logger_on_first_use=False,
    )


@contextmanager
def hiding(hide: Callable[[str], str]) -> Generator[None]:
    """Passes every text that is logged through `hide` while the block runs."""

    def hidden(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        for key, value in event.items():
            text = str(value)
            if (shown := hide(text)) != text:
                event[key] = shown
        return event

    *before, encoder = structlog.get_config()["processors"]
    structlog.configure(processors=[*before, hidden, encoder])
    try:
        yield
    finally:
        now = structlog.get_config()["processors"]
        structlog.configure(processors=[each for each in now if each is not hidden])


class _Stderr:
    """Whatever standard error is at the moment of writing."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _encoders(encoding: str, program: str) -> list[Processor]:
    match encoding:
        case "json":
            return [_Json(program)]
        case "console":
            stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
            return [stamp, structlog.dev.ConsoleRenderer(colors=False)]
        case "humanize":
            return [_humanize]
        case _:
            raise UserMistake(
                f'no encoder registered for name "{encoding}"', hint="use json, console or humanize"
            )


class _Json:
    """One JSON object a line, with the keys that log collectors of upstream know."""

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
    """The message, then a tab and the fields as JSON when there are any."""
    message = str(event.pop("event", ""))
    event.pop("level", None)
    trace = event.pop("exception", None)
    line = f"{message}\t{json.dumps(dict(event), default=str)}" if event else message
    return f"{line}\n{trace}" if trace else line
