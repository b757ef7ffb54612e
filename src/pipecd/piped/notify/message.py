# SPDX-License-Identifier: Apache-2.0
"""A notice in words for people, before any receiver gives it its own form."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from pipecd.model.clock import from_unix
from pipecd.model.deployment import triggered_by
from pipecd.model.giturl import commit_page
from pipecd.piped.notify.mentions import Mentions, mentions_of
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.piped.notify.subject import Subject, said, subject_of
from pipecd.proto.model.deployment_pb2 import Deployment

_SHORT = 8


class Mood(Enum):
    """How a message is meant, with the colour that shows it."""

    NEUTRAL = "#222429"
    GOOD = "#629650"
    BAD = "#9C3C31"
    UNEASY = "#C1A337"


@dataclass(frozen=True)
class Field:
    """A fact with its name; `link` is the page about it, `at` the moment where it is one."""

    name: str
    value: str
    link: str = ""
    at: int = 0


@dataclass(frozen=True)
class Message:
    """What people read."""

    title: str
    text: str
    fields: tuple[Field, ...]
    mood: Mood
    link: str
    mentions: Mentions


@dataclass(frozen=True)
class Console:
    """The pages of the control plane; without its address there are no links."""

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
class _Words:
    title: str
    mood: Mood = Mood.NEUTRAL


_FOR = 'Deployment for "{application}"'
_STAGE = 'Stage "{stage}"'
_WORDS = {
    NoticeKind.DEPLOYMENT_TRIGGERED: _Words('Triggered a new deployment for "{application}"'),
    NoticeKind.DEPLOYMENT_PLANNED: _Words(f"{_FOR} was planned"),
    NoticeKind.DEPLOYMENT_STARTED: _Words(f"{_FOR} was started"),
    NoticeKind.DEPLOYMENT_WAIT_APPROVAL: _Words(f"{_FOR} is waiting for an approval"),
    NoticeKind.DEPLOYMENT_APPROVED: _Words(f"{_FOR} was approved"),
    NoticeKind.DEPLOYMENT_ROLLING_BACK: _Words(f"{_FOR} is being rolled back", Mood.UNEASY),
    NoticeKind.DEPLOYMENT_SUCCEEDED: _Words(f"{_FOR} was completed successfully", Mood.GOOD),
    NoticeKind.DEPLOYMENT_FAILED: _Words(f"{_FOR} was failed", Mood.BAD),
    NoticeKind.DEPLOYMENT_CANCELLED: _Words(f"{_FOR} was cancelled", Mood.UNEASY),
    NoticeKind.DEPLOYMENT_TRIGGER_FAILED: _Words(
        "Failed to trigger a new deployment for {application}", Mood.BAD
    ),
    NoticeKind.APPLICATION_SYNCED: _Words('Application "{application}" is in sync', Mood.GOOD),
    NoticeKind.APPLICATION_OUT_OF_SYNC: _Words(
        'Application "{application}" is out of sync', Mood.UNEASY
    ),
    NoticeKind.APPLICATION_HEALTHY: _Words('Application "{application}" is healthy', Mood.GOOD),
    NoticeKind.PIPED_STARTED: _Words("A piped has been started"),
    NoticeKind.PIPED_STOPPED: _Words("A piped has been stopped"),
    NoticeKind.STAGE_STARTED: _Words(f"{_STAGE} was started"),
    NoticeKind.STAGE_SKIPPED: _Words(f"{_STAGE} was skipped"),
    NoticeKind.STAGE_SUCCEEDED: _Words(f"{_STAGE} was completed successfully", Mood.GOOD),
    NoticeKind.STAGE_FAILED: _Words(f"{_STAGE} was failed", Mood.BAD),
    NoticeKind.STAGE_CANCELLED: _Words(f"{_STAGE} was cancelled", Mood.UNEASY),
}

Escape = Callable[[str], str]


def compose(notice: Notice, console: Console, escape: Escape) -> Message:
    """The usual words; `escape` guards what others wrote against the markup of a receiver."""
    about, words = subject_of(notice.facts), _WORDS[notice.kind]
    title = words.title.format(
        application=escape(about.application),
        stage=escape(about.stage.name if about.stage is not None else ""),
    )
    return Message(
        title=title,
        text=escape(_text(notice, about)),
        fields=tuple(
            Field(field.name, escape(field.value), field.link, field.at)
            for field in _fields(notice, about, console)
            if field.value
        ),
        mood=words.mood,
        link=_link(about, console),
        mentions=_mentions(notice, about),
    )


def reason_of(notice: Notice, about: Subject) -> str:
    """Why things are as they are."""
    if said(notice.facts, "reason"):
        return said(notice.facts, "reason")
    if about.stage is not None:
        return about.stage.status_reason
    if about.state is not None:
        return about.state.short_reason or about.state.reason
    return about.deployment.status_reason if about.deployment is not None else ""


def _text(notice: Notice, about: Subject) -> str:
    match notice.kind:
        case NoticeKind.DEPLOYMENT_PLANNED:
            return said(notice.facts, "summary")
        case NoticeKind.DEPLOYMENT_APPROVED:
            return f"Approved by {said(notice.facts, 'approver')}"
        case NoticeKind.DEPLOYMENT_CANCELLED if said(notice.facts, "commander"):
            return f"Cancelled by {said(notice.facts, 'commander')}"
        case (
            NoticeKind.DEPLOYMENT_FAILED
            | NoticeKind.DEPLOYMENT_CANCELLED
            | NoticeKind.DEPLOYMENT_ROLLING_BACK
            | NoticeKind.DEPLOYMENT_TRIGGER_FAILED
            | NoticeKind.APPLICATION_OUT_OF_SYNC
            | NoticeKind.STAGE_FAILED
            | NoticeKind.STAGE_SKIPPED
        ):
            return reason_of(notice, about)
        case _:
            return ""


def _link(about: Subject, console: Console) -> str:
    if about.deployment is not None:
        return console.deployment(about.deployment.id)
    return console.application(about.application_id) if about.application_id else console.pipeds()


def _mentions(notice: Notice, about: Subject) -> Mentions:
    if about.deployment is not None:
        return mentions_of(about.deployment, notice.kind)
    users: Iterable[str] = getattr(notice.facts, "mentioned_accounts", ())
    groups: Iterable[str] = getattr(notice.facts, "mentioned_groups", ())
    return Mentions(tuple(users), tuple(groups))


def _fields(notice: Notice, about: Subject, console: Console) -> Iterator[Field]:
    facts = notice.facts
    if not about.application_id:
        yield Field("Name", said(facts, "name"))
        yield Field("Version", said(facts, "version"))
        yield Field("Project", about.project)
        yield Field("Id", _short(said(facts, "id")))
        return
    yield Field("Project", about.project)
    yield Field("Application", about.application, console.application(about.application_id))
    yield _sort(about)
    if about.deployment is not None:
        yield from _deployment_fields(about.deployment, about, console)
    if commit := said(facts, "commit_hash"):
        link = commit_page(about.remote, commit)
        yield Field("Commit", said(facts, "commit_message").partition("\n")[0], link)


def _deployment_fields(own: Deployment, about: Subject, console: Console) -> Iterator[Field]:
    yield Field("Deployment", _short(own.id), console.deployment(own.id))
    if about.stage is not None:
        yield Field("Stage", about.stage.name)
    yield Field("Triggered By", triggered_by(own))
    if about.stage is None:
        yield Field("Started At", from_unix(own.created_at).isoformat(" "), at=own.created_at)


def _sort(about: Subject) -> Field:
    """The platform, which only applications of the first generation have; else the labels."""
    if about.platform:
        return Field("Kind", about.platform.lower())
    labels = sorted((about.labels or {}).items())
    return Field("Labels", ",".join(f"{key}={value}" for key, value in labels))


def _short(id_: str) -> str:
    return f"{id_[:_SHORT]}..." if len(id_) > _SHORT else id_
