# SPDX-License-Identifier: Apache-2.0
"""View models of the page that registers applications."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from pipecd.controlplane.console.command_notice import Notice
from pipecd.controlplane.console.deploy_targets import KIND_NAMES, TargetOptions, target_options
from pipecd.controlplane.console.formatting import join_words, label_texts
from pipecd.controlplane.console.status_badge import (
    Badge,
    PipedStatus,
    Tone,
    offline_pipeds,
    piped_status,
    unstarted_pipeds,
)
from pipecd.model.application import ApplicationKind
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.piped_pb2 import Piped

MAX_ROWS = 50


class ApplicationFile(NamedTuple):
    """An application configuration file: the id of its piped, and where it is in Git."""

    piped: str
    repository: str
    path: str
    name: str

    @property
    def anchor(self) -> str:
        """The id of the file's row on the page."""
        return "found-" + sha256("\0".join(self).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class FoundApplicationRow:
    """An application found in Git; the user may add it if `disabled_reason` is empty."""

    file: ApplicationFile
    name: str
    labels: tuple[str, ...]
    platform: str
    piped: PipedStatus
    targets: TargetOptions
    disabled_reason: str = ""

    @property
    def needs_choice(self) -> bool:
        """Whether someone must choose its deploy targets, so that it is added by itself."""
        return bool(self.targets.options) and not self.targets.default


@dataclass(frozen=True)
class ManualForm:
    """The form for an application that no piped found."""

    piped: PipedStatus
    repositories: tuple[str, ...]
    targets: TargetOptions
    disabled_reason: str = ""


@dataclass(frozen=True)
class EmptyState:
    """Why no application is listed, and what to do."""

    title: str
    text: str
    # The address of the next step and its words; empty if there is none.
    link: tuple[str, str] | None = None


def file_of(info: ApplicationInfo) -> ApplicationFile:
    return ApplicationFile(info.piped_id, info.repo_id, info.path, info.config_filename)


def registered_file(application: Application) -> ApplicationFile:
    """The configuration file of a registered application."""
    git = application.git_path
    return ApplicationFile(application.piped_id, git.repo.id, git.path, git.config_filename)


def unregistered_applications(
    infos: Iterable[ApplicationInfo],
    applications: Iterable[Application],
    pipeds: Sequence[Piped] | None,
) -> tuple[ApplicationInfo, ...]:
    """What enabled pipeds found in Git and nobody has registered.

    A piped reports its list again a moment after one of them was registered, so this filters too.
    """
    registered = {registered_file(application) for application in applications}
    enabled = None if pipeds is None else {piped.id for piped in pipeds if not piped.disabled}
    return tuple(
        info
        for info in infos
        if file_of(info) not in registered and (enabled is None or info.piped_id in enabled)
    )


def search(infos: Iterable[ApplicationInfo], text: str) -> tuple[ApplicationInfo, ...]:
    """Those with the text in their name, path, repository or labels."""
    needle = text.casefold()
    return tuple(
        info
        for info in infos
        if any(
            needle in part.casefold()
            for part in (info.name, info.path, info.repo_id, *label_texts(info.labels))
        )
    )


def found_application_row(
    info: ApplicationInfo,
    pipeds: Sequence[Piped] | None,
    options: Mapping[str, TargetOptions],
    disabled_reason: str,
) -> FoundApplicationRow:
    kind = ApplicationKind(info.kind)
    of_piped = options.get(info.piped_id, TargetOptions())
    # Zero is Kubernetes, and also what v1 applications send, which have no kind.
    has_kind = of_piped.are_providers or kind is not ApplicationKind.KUBERNETES
    no_provider = no_provider_text(kind) if of_piped.lacks(kind) else ""
    return FoundApplicationRow(
        file_of(info),
        info.name,
        label_texts(info.labels),
        KIND_NAMES[kind] if has_kind else "",
        piped_status(info.piped_id, pipeds),
        of_piped.of_kind(kind),
        disabled_reason or no_provider,
    )


def manual_form(pipeds: Sequence[Piped], piped_id: str, disabled_reason: str) -> ManualForm | None:
    """The form for the given piped, else for one that is online with repositories, if any."""
    enabled = [piped for piped in pipeds if not piped.disabled]
    if not enabled:
        return None
    statuses = {piped.id: piped_status(piped.id, pipeds) for piped in enabled}
    piped = max(
        enabled,
        key=lambda piped: (
            piped.id == piped_id,
            bool(piped.repositories),
            not statuses[piped.id].is_unavailable,
        ),
    )
    return ManualForm(
        statuses[piped.id],
        tuple(repository.id for repository in piped.repositories),
        target_options(piped),
        disabled_reason,
    )


def no_provider_text(kind: ApplicationKind) -> str:
    """What to do if a piped cannot deploy a kind."""
    return (
        f"The piped has no platform provider for {KIND_NAMES[kind]}; "
        "add one to its configuration and restart it."
    )


def why_empty(pipeds: Sequence[Piped] | None) -> EmptyState:
    """Why no application is listed."""
    nothing_new = EmptyState(
        "No unregistered applications",
        "A piped lists files named app.pipecd.yaml or *.pipecd.yaml that are valid and have a "
        "name; pipectl lint reports what is wrong with a file. New ones appear here by themselves.",
    )
    if pipeds is None:
        return nothing_new
    enabled = [piped for piped in pipeds if not piped.disabled]
    if not enabled:
        return EmptyState(
            "No piped is enabled",
            "A piped searches the repositories of its configuration, and the applications it "
            "finds appear here. Add a piped first, and start it.",
            link=("/settings/piped#add", "Add a piped"),
        )
    online = [piped for piped in enabled if not piped_status(piped.id, pipeds).is_unavailable]
    if not online:
        return _without_pipeds(pipeds)
    if not any(piped.repositories for piped in online):
        names = join_words([piped.name for piped in online])
        watch = "Piped {} watches" if len(online) == 1 else "The pipeds {} watch"
        return EmptyState(
            "No repository is watched",
            f"{watch.format(names)} no repository. Add one to spec.repositories of its "
            "configuration and restart it.",
        )
    return nothing_new


def _without_pipeds(pipeds: Sequence[Piped]) -> EmptyState:
    """Why no application is listed if no piped is online."""
    offline = offline_pipeds(pipeds)
    if not offline:
        unstarted = unstarted_pipeds(pipeds)
        names = join_words([piped.name for piped in unstarted])
        are = "Piped {} is" if len(unstarted) == 1 else "The pipeds {} are"
        return EmptyState(
            "No piped is started yet",
            f"{are.format(names)} registered. Applications appear here when a piped runs and has "
            "read its repositories.",
            link=(f"/settings/piped/{unstarted[0].id}", f"Start {unstarted[0].name}"),
        )
    names = join_words([piped.name for piped in offline])
    are = "Piped {} is" if len(offline) == 1 else "The pipeds {} are"
    return EmptyState(
        "No piped is online",
        f"{are.format(names)} offline. Applications appear here when a piped is back.",
        link=("/settings/piped?status=offline", "See it" if len(offline) == 1 else "See them"),
    )


def added_notice(piped: PipedStatus) -> Notice:
    """The notice on the page of an application that was just added."""
    if piped.is_unavailable:
        text = f"Added. It is deployed when piped {piped.name} {piped.remedy}."
        return Notice("", Badge(Tone.WAIT, "clock", "added"), text, is_pending=False)
    text = f"Added. Piped {piped.name} reads its configuration and deploys it in a moment."
    return Notice("", Badge(Tone.OK, "check", "added"), text, is_pending=False)
