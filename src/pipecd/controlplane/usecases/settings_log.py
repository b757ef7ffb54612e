# SPDX-License-Identifier: Apache-2.0
"""Who changed which setting, for the log of the control plane."""

import structlog
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.usecases.access import commander

log = structlog.get_logger()


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
    log.info(event, project=by.project, by=commander(by), **fields)
