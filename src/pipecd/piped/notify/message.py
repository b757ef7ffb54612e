# SPDX-License-Identifier: Apache-2.0
"""The default message of an event, before a receiver formats it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from pipecd.model.clock import from_unix
from pipecd.model.deployment import triggered_by
from pipecd.model.giturl import commit_page
from pipecd.piped.notify.event import (
    EventSubject,
    EventType,
    Mentions,
    NotificationEvent,
    mentions_of,
    subject_of,
    text_field,
)

_SHORT_ID_LENGTH = 8


class Severity(Enum):
    """The severity of a message, with its colour."""

    INFO = "#222429"
    SUCCESS = "#629650"
    ERROR = "#9C3C31"
    WARNING = "#C1A337"


@dataclass(frozen=True)
class Field:
    """A named value; `link` is the page about it, `at` the Unix time if it is a time."""

    name: str
    value: str
    link: str = ""
    at: int = 0


@dataclass(frozen=True)
class Message:
    """A message for people."""

    title: str
    text: str
    fields: tuple[Field, ...]
    severity: Severity
    link: str
    mentions: Mentions


@dataclass(frozen=True)
class ConsoleLinks:
    """Links to pages of the control plane; empty if its address is not configured."""

    address: str
    project: str

    def application(self, id_: str) -> str:
        return self._page(f"applications/{id_}")

    def deployment(self, id_: str) -> str:
        return self._page(f"deployments/{id_}")

    def pipeds(self) -> str:
        return self._page("settings/piped")

    def _page(self, path: str) -> str:
        if not self.address:
            return ""
        return f"{self.address.rstrip('/')}/{path}?project={self.project}"


@dataclass(frozen=True)
class _Title:
    format: str
    severity: Severity = Severity.INFO


_DEPLOYMENT = 'Deployment for "{application}"'
_STAGE = 'Stage "{stage}"'
_TITLES = {
    EventType.DEPLOYMENT_TRIGGERED: _Title('Triggered a new deployment for "{application}"'),
    EventType.DEPLOYMENT_PLANNED: _Title(f"{_DEPLOYMENT} was planned"),
    EventType.DEPLOYMENT_STARTED: _Title(f"{_DEPLOYMENT} was started"),
    EventType.DEPLOYMENT_WAIT_APPROVAL: _Title(f"{_DEPLOYMENT} is waiting for an approval"),
    EventType.DEPLOYMENT_APPROVED: _Title(f"{_DEPLOYMENT} was approved"),
    EventType.DEPLOYMENT_ROLLING_BACK: _Title(
        f"{_DEPLOYMENT} is being rolled back", Severity.WARNING
    ),
    EventType.DEPLOYMENT_SUCCEEDED: _Title(
        f"{_DEPLOYMENT} was completed successfully", Severity.SUCCESS
    ),
    EventType.DEPLOYMENT_FAILED: _Title(f"{_DEPLOYMENT} was failed", Severity.ERROR),
    EventType.DEPLOYMENT_CANCELLED: _Title(f"{_DEPLOYMENT} was cancelled", Severity.WARNING),
    EventType.DEPLOYMENT_TRIGGER_FAILED: _Title(
        "Failed to trigger a new deployment for {application}", Severity.ERROR
    ),
    EventType.APPLICATION_SYNCED: _Title(
        'Application "{application}" is in sync', Severity.SUCCESS
    ),
    EventType.APPLICATION_OUT_OF_SYNC: _Title(
        'Application "{application}" is out of sync', Severity.WARNING
    ),
    EventType.APPLICATION_HEALTHY: _Title(
        'Application "{application}" is healthy', Severity.SUCCESS
    ),
    EventType.PIPED_STARTED: _Title("A piped has been started"),
    EventType.PIPED_STOPPED: _Title("A piped has been stopped"),
    EventType.STAGE_STARTED: _Title(f"{_STAGE} was started"),
    EventType.STAGE_SKIPPED: _Title(f"{_STAGE} was skipped"),
    EventType.STAGE_SUCCEEDED: _Title(f"{_STAGE} was completed successfully", Severity.SUCCESS),
    EventType.STAGE_FAILED: _Title(f"{_STAGE} was failed", Severity.ERROR),
    EventType.STAGE_CANCELLED: _Title(f"{_STAGE} was cancelled", Severity.WARNING),
}

Escape = Callable[[str], str]


def compose(event: NotificationEvent, console: ConsoleLinks, escape: Escape) -> Message:
    """The default message; `escape` protects texts of users against the markup of a receiver."""
    subject, title = subject_of(event.metadata), _TITLES[event.type]
    if subject.deployment is not None:
        link = console.deployment(subject.deployment.id)
        mentions = mentions_of(subject.deployment, event.type)
    else:
        id_ = subject.application_id
        link = console.application(id_) if id_ else console.pipeds()
        users: Iterable[str] = getattr(event.metadata, "mentioned_accounts", ())
        groups: Iterable[str] = getattr(event.metadata, "mentioned_groups", ())
        mentions = Mentions(tuple(users), tuple(groups))
    return Message(
        title=title.format.format(
            application=escape(subject.application),
            stage=escape(subject.stage.name if subject.stage is not None else ""),
        ),
        text=escape(_text(event, subject)),
        fields=tuple(
            Field(field.name, escape(field.value), field.link, field.at)
            for field in _fields(event, subject, console)
            if field.value
        ),
        severity=title.severity,
        link=link,
        mentions=mentions,
    )


def reason_of(event: NotificationEvent, subject: EventSubject) -> str:
    """The reason of the status that an event reports."""
    if text_field(event.metadata, "reason"):
        return text_field(event.metadata, "reason")
    if subject.stage is not None:
        return subject.stage.status_reason
    if subject.state is not None:
        return subject.state.short_reason or subject.state.reason
    return subject.deployment.status_reason if subject.deployment is not None else ""


def _text(event: NotificationEvent, subject: EventSubject) -> str:
    match event.type:
        case EventType.DEPLOYMENT_PLANNED:
            return text_field(event.metadata, "summary")
        case EventType.DEPLOYMENT_APPROVED:
            return f"Approved by {text_field(event.metadata, 'approver')}"
        case EventType.DEPLOYMENT_CANCELLED if text_field(event.metadata, "commander"):
            return f"Cancelled by {text_field(event.metadata, 'commander')}"
        case (
            EventType.DEPLOYMENT_FAILED
            | EventType.DEPLOYMENT_CANCELLED
            | EventType.DEPLOYMENT_ROLLING_BACK
            | EventType.DEPLOYMENT_TRIGGER_FAILED
            | EventType.APPLICATION_OUT_OF_SYNC
            | EventType.STAGE_FAILED
            | EventType.STAGE_SKIPPED
        ):
            return reason_of(event, subject)
        case _:
            return ""


def _fields(
    event: NotificationEvent, subject: EventSubject, console: ConsoleLinks
) -> Iterator[Field]:
    metadata = event.metadata
    if not subject.application_id:
        yield Field("Name", text_field(metadata, "name"))
        yield Field("Version", text_field(metadata, "version"))
        yield Field("Project", subject.project)
        yield Field("Id", _short(text_field(metadata, "id")))
        return
    yield Field("Project", subject.project)
    yield Field("Application", subject.application, console.application(subject.application_id))
    if subject.platform:
        # Only v0 applications have a kind.
        yield Field("Kind", subject.platform.lower())
    else:
        labels = sorted((subject.labels or {}).items())
        yield Field("Labels", ",".join(f"{key}={value}" for key, value in labels))
    if (deployment := subject.deployment) is not None:
        created_at = deployment.created_at
        yield Field("Deployment", _short(deployment.id), console.deployment(deployment.id))
        if subject.stage is not None:
            yield Field("Stage", subject.stage.name)
        yield Field("Triggered By", triggered_by(deployment))
        if subject.stage is None:
            yield Field("Started At", from_unix(created_at).isoformat(" "), at=created_at)
    if commit := text_field(metadata, "commit_hash"):
        link = commit_page(subject.remote, commit)
        yield Field("Commit", text_field(metadata, "commit_message").partition("\n")[0], link)


def _short(id_: str) -> str:
    return f"{id_[:_SHORT_ID_LENGTH]}..." if len(id_) > _SHORT_ID_LENGTH else id_


def truncate(text: str, max_length: int) -> str:
    """Shortens a text to the limit of a receiver."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
