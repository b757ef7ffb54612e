# SPDX-License-Identifier: Apache-2.0
"""Who is to be mentioned when something happens to a deployment."""

import json
from dataclasses import dataclass
from typing import Any

import structlog
from google.protobuf.message import Message
from pydantic import ValidationError

from pipecd.config.application.notification import NotificationSpec
from pipecd.piped.notify.notice import NoticeKind
from pipecd.proto.model.deployment_pb2 import Deployment

log: structlog.stdlib.BoundLogger = structlog.get_logger()

NOTIFICATION_KEY = "DeploymentNotification"


@dataclass(frozen=True)
class Mentions:
    """Users and groups of Slack, and addresses of people who read mail."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()

    def add_to(self, facts: Message) -> None:
        """Writes the mentions into facts, where their kind has room for them."""
        for name, ids in (("mentioned_accounts", self.users), ("mentioned_groups", self.groups)):
            if name in facts.DESCRIPTOR.fields_by_name:
                getattr(facts, name).extend(ids)


def mentions_of(deployment: Deployment, kind: NoticeKind) -> Mentions:
    """Those whom the application asked to mention when the deployment was triggered."""
    shared = deployment.metadata_v2.shared.keyValues
    text = shared.get(NOTIFICATION_KEY) or deployment.metadata.get(NOTIFICATION_KEY)
    if not text:
        return Mentions()
    try:
        wanted = NotificationSpec.model_validate_json(json.dumps(_without_nulls(json.loads(text))))
    except (ValueError, ValidationError) as e:
        log.warning("nobody is mentioned, the mentions are unreadable", error=str(e))
        return Mentions()
    return mentions_in(wanted, kind)


def mentions_in(wanted: NotificationSpec, kind: NoticeKind) -> Mentions:
    """Those whom the configuration of an application asks to mention."""
    return Mentions(wanted.users(kind.name), wanted.groups(kind.name), wanted.emails(kind.name))


def _without_nulls(value: Any) -> Any:
    """Upstream writes lists that nobody set as null."""
    match value:
        case dict():
            return {k: _without_nulls(v) for k, v in value.items() if v is not None}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_without_nulls(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
