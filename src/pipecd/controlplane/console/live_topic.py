# SPDX-License-Identifier: Apache-2.0
"""What a page wants to hear of, and which signals tell it."""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from pipecd.controlplane.bus.signal import Signal
from pipecd.controlplane.bus.signal import Topic as Changed
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.model.errors import UserMistake

MOST_TOPICS = 20


class Subject(Enum):
    """The kinds of topics, by the word that begins them in an address."""

    APPLICATIONS = "apps"
    APPLICATION = "app"
    DEPLOYMENTS = "deployments"
    DEPLOYMENT = "dep"
    PIPEDS = "pipeds"
    COMMAND = "cmd"
    LOG = "log"


_ALL_OF = {
    Subject.APPLICATIONS: Changed.APPLICATION,
    Subject.DEPLOYMENTS: Changed.DEPLOYMENT,
    Subject.PIPEDS: Changed.PIPED,
}
_ONE_OF = {
    Subject.APPLICATION: Changed.APPLICATION,
    Subject.DEPLOYMENT: Changed.DEPLOYMENT,
    Subject.COMMAND: Changed.COMMAND,
}


@dataclass(frozen=True)
class Topic:
    """Something to follow; `run` is set for a log."""

    subject: Subject
    id: str = ""
    run: StageRun | None = None

    def __str__(self) -> str:
        return f"{self.subject.value}:{self.id}" if self.id else self.subject.value

    def hears(self, signal: Signal) -> bool:
        """Whether the signal may concern it."""
        if signal.topic is Changed.EVERYTHING:
            return True
        if self.run is not None:
            changed = f"{self.run.deployment_id}/{self.run.stage_id}"
            return signal.topic is Changed.STAGE_LOG and signal.id == changed
        if self.subject in _ALL_OF:
            return signal.topic is _ALL_OF[self.subject]
        return signal.topic is _ONE_OF[self.subject] and signal.id == self.id


def read_topics(text: str) -> tuple[Topic, ...]:
    """The topics of an address, `dep:ID,log:ID:STAGE:0`, or UserMistake."""
    parts = [part for part in text.split(",") if part]
    if not 0 < len(parts) <= MOST_TOPICS:
        raise UserMistake(f"a stream follows 1 to {MOST_TOPICS} topics, not {len(parts)}")
    topics = tuple(_read(part) for part in parts)
    if sum(topic.run is not None for topic in topics) > 1:
        raise UserMistake("a stream follows one log")
    return topics


def _read(text: str) -> Topic:
    word, *rest = text.split(":")
    try:
        subject = Subject(word)
    except ValueError as e:
        raise UserMistake(f"there is no topic {word!r}") from e
    if subject in _ALL_OF and not rest:
        return Topic(subject)
    if subject in _ONE_OF and len(rest) == 1 and rest[0]:
        return Topic(subject, rest[0])
    if subject is Subject.LOG and len(rest) in (2, 3):
        retried = rest[2] if len(rest) == 3 else "0"
        if retried.isascii() and retried.isdigit():
            return Topic(subject, ":".join(rest), StageRun(rest[0], unquote(rest[1]), int(retried)))
    raise UserMistake(f"the topic {text!r} cannot be understood")
