# SPDX-License-Identifier: Apache-2.0
"""Who changed which setting, for the log of the control plane."""

from collections.abc import Callable
from typing import Generic, TypeVar

import structlog
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.usecases.access import caller_id

log = structlog.get_logger()

M = TypeVar("M", bound=Message)


class RecordedChange(Generic[M]):
    """A change of a document that records which fields it has changed."""

    def __init__(self, change: Callable[[M], None]) -> None:
        self._change = change
        self.fields: tuple[str, ...] = ()

    def __call__(self, document: M) -> None:
        before = type(document)()
        before.CopyFrom(document)
        self._change(document)
        self.fields = changed_fields(before, document)


def changed_fields(before: Message, after: Message) -> tuple[str, ...]:
    """The names of the fields in which two messages of a kind differ, never their values."""
    names = (field.name for field in after.DESCRIPTOR.fields)
    return tuple(
        name
        for name in names
        if name != "updated_at" and getattr(before, name) != getattr(after, name)
    )


def log_change(event: str, *, by: UserOrApiKey, **fields: object) -> None:
    """Logs what a caller changed; `event` is a constant phrase."""
    log.info(event, project=by.project, by=caller_id(by), **fields)
