# SPDX-License-Identifier: Apache-2.0
"""What an event changes in Git: in application files, and in files of kind EventWatcher."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipecd.config.rule import refuse
from pipecd.config.spec import Advice, Spec

GIT_UPDATE = "GIT_UPDATE"
_WHICH_PLACE = "write yamlField, jsonField, HCLField or regex"


class ReplacementSpec(Spec):
    """One value in one file that an event replaces."""

    file: str = ""
    yaml_field: str = ""
    json_field: str = ""
    hcl_field: Annotated[str, Field(alias="HCLField")] = ""
    regex: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the keys of the places that are set, in the order in which they count."""
        places = {
            "yamlField": self.yaml_field,
            "jsonField": self.json_field,
            "HCLField": self.hcl_field,
            "regex": self.regex,
        }
        return tuple(key for key, value in places.items() if value)

    def advice(self) -> Iterator[Advice]:
        """Yield what every event would fail with, and places of which only one counts."""
        if not self.fields:
            yield Advice((), f"says not what is replaced, {_WHICH_PLACE}")
        paths = {
            "yamlField": self.yaml_field,
            "jsonField": self.json_field,
            "HCLField": self.hcl_field,
        }
        for key, path in paths.items():
            if path and not path.startswith("$"):
                yield Advice((key,), "a path begins with $, write it like $.spec.items[0].name")
        if self.regex and "(" not in self.regex:
            yield Advice(("regex",), "put what shall be replaced in parentheses")
        if len(self.fields) > 1:
            yield Advice((), f"only {self.fields[0]} counts, write one place for each replacement")


class EventMatcherSpec(Spec):
    """Which events count: this name, and every one of these labels."""

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])


class EventUpdateSpec(Spec):
    """The change to commit; paths are relative to the directory of the application."""

    commit_message: str = ""
    make_pull_request: bool = False
    replacements: tuple[ReplacementSpec, ...] = ()


class EventHandlerSpec(Spec):
    """What to do about an event."""

    type: str = ""
    config: EventUpdateSpec = EventUpdateSpec()

    def advice(self) -> Iterator[Advice]:
        """Yield a type that does nothing."""
        if self.type != GIT_UPDATE:
            yield Advice(("type",), f"nothing is done for such events, write {GIT_UPDATE}")


class EventWatchSpec(Spec):
    """One entry of `eventWatcher` in an application file."""

    matcher: EventMatcherSpec = EventMatcherSpec()
    handler: EventHandlerSpec = EventHandlerSpec()


class WatchedEventSpec(Spec):
    """One event of a file of kind EventWatcher; paths are relative to the repository."""

    name: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])
    replacements: tuple[ReplacementSpec, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        refuse(
            self,
            (not self.name, "name", "event name must not be empty"),
            (not self.replacements, "replacements", "must have at least one replacement"),
            *(
                rule
                for i, replacement in enumerate(self.replacements)
                for rule in _rules(i, replacement)
            ),
        )
        return self


class EventWatcherFileSpec(Spec):
    """The `spec` of the kind EventWatcher."""

    events: tuple[WatchedEventSpec, ...] = ()


def _rules(index: int, r: ReplacementSpec) -> Iterator[tuple[object, tuple[str | int, ...], str]]:
    at = ("replacements", index)
    yield not r.file, (*at, "file"), "a replacement must name a file"
    yield (
        not r.fields,
        at,
        f"a replacement must have a field, {_WHICH_PLACE}",
    )
    # Upstream lets two places pass; a file that loads there loads here.
    yield len(r.fields) > 2, at, "a replacement must not have multiple fields, write only one"
