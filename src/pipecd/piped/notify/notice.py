# SPDX-License-Identifier: Apache-2.0
"""Something that people want to hear of: its kind, and the facts as upstream sends them."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from google.protobuf.message import Message

from pipecd.config.piped.notification import GROUPS
from pipecd.proto.model import notification_pb2 as pb


class NoticeKind(IntEnum):
    """What happened, with the numbers of the wire."""

    DEPLOYMENT_TRIGGERED = pb.EVENT_DEPLOYMENT_TRIGGERED
    DEPLOYMENT_PLANNED = pb.EVENT_DEPLOYMENT_PLANNED
    DEPLOYMENT_APPROVED = pb.EVENT_DEPLOYMENT_APPROVED
    DEPLOYMENT_ROLLING_BACK = pb.EVENT_DEPLOYMENT_ROLLING_BACK
    DEPLOYMENT_SUCCEEDED = pb.EVENT_DEPLOYMENT_SUCCEEDED
    DEPLOYMENT_FAILED = pb.EVENT_DEPLOYMENT_FAILED
    DEPLOYMENT_CANCELLED = pb.EVENT_DEPLOYMENT_CANCELLED
    DEPLOYMENT_WAIT_APPROVAL = pb.EVENT_DEPLOYMENT_WAIT_APPROVAL
    DEPLOYMENT_TRIGGER_FAILED = pb.EVENT_DEPLOYMENT_TRIGGER_FAILED
    DEPLOYMENT_STARTED = pb.EVENT_DEPLOYMENT_STARTED
    APPLICATION_SYNCED = pb.EVENT_APPLICATION_SYNCED
    APPLICATION_OUT_OF_SYNC = pb.EVENT_APPLICATION_OUT_OF_SYNC
    APPLICATION_HEALTHY = pb.EVENT_APPLICATION_HEALTHY
    PIPED_STARTED = pb.EVENT_PIPED_STARTED
    PIPED_STOPPED = pb.EVENT_PIPED_STOPPED
    STAGE_STARTED = pb.EVENT_STAGE_STARTED
    STAGE_SKIPPED = pb.EVENT_STAGE_SKIPPED
    STAGE_SUCCEEDED = pb.EVENT_STAGE_SUCCEEDED
    STAGE_FAILED = pb.EVENT_STAGE_FAILED
    STAGE_CANCELLED = pb.EVENT_STAGE_CANCELLED

    @property
    def group(self) -> str:
        """The name by which a route asks for all kinds of a sort."""
        return GROUPS[self // 100]


@dataclass(frozen=True)
class Notice:
    """`facts` is the NotificationEvent message of the kind.

    `key` names what happened, so that the same thing told twice is heard once; without a key every
    notice is a new one.
    """

    kind: NoticeKind
    facts: Message
    key: str = ""


class Notices(Protocol):
    """Where a part of piped tells what happened."""

    def tell(self, notice: Notice) -> None:
        """Queues the notice for everybody who wants it; never waits and never fails."""
        ...
