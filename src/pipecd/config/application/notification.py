# SPDX-License-Identifier: Apache-2.0
"""Who is mentioned when something happens to an application."""

from typing import Annotated

from pydantic import Field, field_validator

from pipecd.config.spec import Spec

ANY_EVENT = "*"
EVENTS = (
    "DEPLOYMENT_TRIGGERED",
    "DEPLOYMENT_PLANNED",
    "DEPLOYMENT_APPROVED",
    "DEPLOYMENT_ROLLING_BACK",
    "DEPLOYMENT_SUCCEEDED",
    "DEPLOYMENT_FAILED",
    "DEPLOYMENT_CANCELLED",
    "DEPLOYMENT_WAIT_APPROVAL",
    "DEPLOYMENT_TRIGGER_FAILED",
    "DEPLOYMENT_STARTED",
    "APPLICATION_SYNCED",
    "APPLICATION_OUT_OF_SYNC",
    "APPLICATION_HEALTHY",
    "PIPED_STARTED",
    "PIPED_STOPPED",
    "STAGE_STARTED",
    "STAGE_SKIPPED",
    "STAGE_SUCCEEDED",
    "STAGE_FAILED",
    "STAGE_CANCELLED",
)


def known_event(event: str) -> str:
    """Return the name of an event, or `*` for every one; refuse any other text."""
    if event != ANY_EVENT and event not in EVENTS:
        bare = event.removeprefix("EVENT_")
        instead = bare if bare in EVENTS else "* for every event or a name such as STAGE_FAILED"
        raise ValueError(f'event "{event}" does not exist, write {instead}')
    return event


class MentionSpec(Spec):
    """Whom to mention in Slack, and to write to, for one event; `*` is every event."""

    event: Annotated[str, Field(validate_default=True)] = ""
    slack: tuple[str, ...] = ()
    slackusers: tuple[str, ...] = ()
    slackgroups: tuple[str, ...] = ()
    email: tuple[str, ...] = ()

    @field_validator("event")
    @classmethod
    def _known(cls, event: str) -> str:
        return known_event(event)


class NotificationSpec(Spec):
    """Whom to mention about an application."""

    mentions: tuple[MentionSpec, ...] = ()

    def users(self, event: str) -> tuple[str, ...]:
        """Return the Slack users to mention for an event, each once."""
        found = [u for m in self._about(event) for u in (*m.slack, *m.slackusers)]
        return tuple(dict.fromkeys(found))

    def groups(self, event: str) -> tuple[str, ...]:
        """Return the Slack groups to mention for an event, each once."""
        return tuple(dict.fromkeys(g for m in self._about(event) for g in m.slackgroups))

    def emails(self, event: str) -> tuple[str, ...]:
        """Return the mail addresses to write to as well for an event, each once."""
        return tuple(dict.fromkeys(e for m in self._about(event) for e in m.email))

    def _about(self, event: str) -> list[MentionSpec]:
        return [m for m in self.mentions if m.event in (ANY_EVENT, event)]
