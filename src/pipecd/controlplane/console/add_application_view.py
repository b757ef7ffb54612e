# SPDX-License-Identifier: Apache-2.0
"""Applications that can be added, as their page shows them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from pipecd.controlplane.console.command_notice import Notice
from pipecd.controlplane.console.deploy_targets import Places
from pipecd.controlplane.console.formatting import joined, label_texts
from pipecd.controlplane.console.piped_status import Agent, agent
from pipecd.controlplane.console.status_badge import Mark, Tone, kind_word
from pipecd.model.application import ApplicationKind
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.piped_pb2 import Piped

MOST_ROWS = 50


class File(NamedTuple):
    """An application file: which piped sees it, and where it is in Git."""

    piped: str
    repository: str
    path: str
    name: str

    @property
    def anchor(self) -> str:
        """What stands for the file in an address or as the id of an element."""
        return "found-" + sha256("\0".join(self).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class FoundRow:
    """An application found in Git; `why_not` says why the reader cannot add it."""

    file: File
    name: str
    labels: tuple[str, ...]
    platform: str
    agent: Agent
    places: Places
    why_not: str = ""


@dataclass(frozen=True)
class ByHand:
    """The form for an application that was not found."""

    agent: Agent
    repositories: tuple[str, ...]
    places: Places
    why_not: str = ""


@dataclass(frozen=True)
class Emptiness:
    """Why nothing is offered, and what helps."""

    title: str
    text: str
    needs_piped: bool = False


def file_of(info: ApplicationInfo) -> File:
    return File(info.piped_id, info.repo_id, info.path, info.config_filename)


def registered_file(application: Application) -> File:
    """The file of an application that somebody added."""
    git = application.git_path
    return File(application.piped_id, git.repo.id, git.path, git.config_filename)


def offered(
    infos: Iterable[ApplicationInfo],
    applications: Iterable[Application],
    pipeds: Sequence[Piped] | None,
) -> tuple[ApplicationInfo, ...]:
    """What nobody added yet, of pipeds that are in use.

    A piped tells its list anew a moment after one of them was added.
    """
    added = {registered_file(application) for application in applications}
    in_use = None if pipeds is None else {piped.id for piped in pipeds if not piped.disabled}
    return tuple(
        info
        for info in infos
        if file_of(info) not in added and (in_use is None or info.piped_id in in_use)
    )


def matching(infos: Iterable[ApplicationInfo], text: str) -> tuple[ApplicationInfo, ...]:
    """Those that have the text in their name, path, repository or labels."""
    wanted = text.casefold()
    return tuple(
        info
        for info in infos
        if any(
            wanted in part.casefold()
            for part in (info.name, info.path, info.repo_id, *label_texts(info.labels))
        )
    )


def found_row(
    info: ApplicationInfo,
    pipeds: Sequence[Piped] | None,
    places: Mapping[str, Places],
    why_not: str,
) -> FoundRow:
    kind = ApplicationKind(info.kind)
    of_piped = places.get(info.piped_id, Places())
    # Zero is Kubernetes, and also what an application of plugins sends for want of a kind.
    has_kind = of_piped.are_providers or kind is not ApplicationKind.KUBERNETES
    lacks = no_provider(kind) if of_piped.lacks(kind) else ""
    return FoundRow(
        file_of(info),
        info.name,
        label_texts(info.labels),
        kind_word(kind) if has_kind else "",
        agent(info.piped_id, pipeds),
        of_piped.of_kind(kind),
        why_not or lacks,
    )


def no_provider(kind: ApplicationKind) -> str:
    """What helps when a piped cannot deploy a kind."""
    return (
        f"The piped has no platform provider for {kind_word(kind)}; "
        "add one to its configuration and restart it."
    )


def why_empty(pipeds: Sequence[Piped] | None) -> Emptiness:
    """Why no application is offered."""
    rest = (
        "A file is offered when it is called app.pipecd.yaml or ends with .pipecd.yaml, has a name "
        "and can be read; pipectl lint tells what is wrong with one. It appears here by itself."
    )
    nothing_new = Emptiness("Pipeds found nothing to add", rest)
    if pipeds is None:
        return nothing_new
    enabled = [piped for piped in pipeds if not piped.disabled]
    if not enabled:
        return Emptiness(
            "No piped looks for applications",
            "A piped looks through the repositories of its configuration and what it finds "
            "appears here. Register one first, and start it.",
            needs_piped=True,
        )
    present = [piped for piped in enabled if not agent(piped.id, pipeds).is_away]
    if not present:
        names = joined([piped.name for piped in enabled])
        are = "Piped {} is" if len(enabled) == 1 else "The pipeds {} are"
        return Emptiness(
            "No piped is looking now",
            f"{are.format(names)} offline. What a piped finds appears here once it is back.",
        )
    if not any(piped.repositories for piped in present):
        names = joined([piped.name for piped in present])
        watch = "Piped {} watches" if len(present) == 1 else "The pipeds {} watch"
        return Emptiness(
            "No repository is watched",
            f"{watch.format(names)} no repository. Add one to spec.repositories of its "
            "configuration and restart it.",
        )
    return nothing_new


def added_notice(agent: Agent) -> Notice:
    """What is said on the page of an application that was just added."""
    if agent.is_away:
        text = f"Added. It is deployed when piped {agent.name} is back."
        return Notice("", Mark(Tone.WAIT, "clock", "added"), text, is_open=False)
    text = f"Added. Piped {agent.name} reads its file and deploys it in a moment."
    return Notice("", Mark(Tone.OK, "check", "added"), text, is_open=False)
