# SPDX-License-Identifier: Apache-2.0
"""What an event changes in a repository, as application files and files in `.pipe/` define it."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pipecd.config.application import (
    GIT_UPDATE,
    EventWatcherFileSpec,
    EventWatchSpec,
    ReplacementSpec,
)
from pipecd.model.errors import UserMistake
from pipecd.model.eventkey import event_key
from pipecd.piped.eventwatcher.replace.replacement import Replacement, Way


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What one event changes; `origin` is the file that says so."""

    origin: str
    name: str
    labels: Mapping[str, str]
    replacements: tuple[Replacement, ...]
    message: str = ""
    makes_pull_request: bool = False
    problem: str = ""
    """Why nothing can be changed, which whoever sends the event is told."""

    @cached_property
    def key(self) -> str:
        """The key of the events that are meant."""
        return event_key(self.name, self.labels)


def of_application(
    watched: Iterable[EventWatchSpec], *, origin: str, directory: str
) -> Iterator[Definition]:
    """The definitions of an application file; one that does nothing on purpose is left out."""
    for each in watched:
        if each.handler.type != GIT_UPDATE or not each.matcher.name:
            continue
        config = each.handler.config
        replacements, problem = _replacements(config.replacements, origin, directory)
        yield Definition(
            origin=origin,
            name=each.matcher.name,
            labels=each.matcher.labels,
            replacements=replacements,
            message=config.commit_message,
            makes_pull_request=config.make_pull_request,
            problem=problem,
        )


def of_file(file: EventWatcherFileSpec, *, origin: str, message: str) -> Iterator[Definition]:
    """The definitions of a file in `.pipe/`, whose paths begin at the root of the repository."""
    for each in file.events:
        replacements, problem = _replacements(each.replacements, origin, "")
        yield Definition(
            origin=origin,
            name=each.name,
            labels=each.labels,
            replacements=replacements,
            message=message,
            problem=problem,
        )


def _replacements(
    specs: tuple[ReplacementSpec, ...], origin: str, directory: str
) -> tuple[tuple[Replacement, ...], str]:
    if not specs:
        return (), f"{origin} names nothing to replace for this event"
    try:
        return tuple(_replacement(spec, origin, directory) for spec in specs), ""
    except UserMistake as e:
        return (), str(e)


def _replacement(spec: ReplacementSpec, origin: str, directory: str) -> Replacement:
    if not spec.file:
        raise UserMistake(f"{origin} has a replacement without a file", hint="write file")
    if not spec.fields:
        raise UserMistake(
            f"{origin} does not say which value in {spec.file} is replaced",
            hint="write yamlField, jsonField, HCLField or regex",
        )
    way = Way(spec.fields[0])
    places = {
        Way.YAML: spec.yaml_field,
        Way.JSON: spec.json_field,
        Way.HCL: spec.hcl_field,
        Way.REGEX: spec.regex,
    }
    # Two ways to write one path must not become two files.
    file = posixpath.normpath(posixpath.join(directory, spec.file))
    return Replacement(file, way, places[way])
