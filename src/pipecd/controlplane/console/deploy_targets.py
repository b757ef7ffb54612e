# SPDX-License-Identifier: Apache-2.0
"""Where a piped can deploy an application to, and what a form chose of it."""
# Pipeds of the first generation tell their places in fields that the wire calls deprecated.
# pyright: reportDeprecated=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.proto.model.piped_pb2 import Piped

NO_TARGET = "-"


@dataclass(frozen=True)
class Place:
    """A platform provider of a kind, or a deploy target of a plugin; `owner` is which."""

    owner: str
    name: str

    @property
    def value(self) -> str:
        """How a form calls it."""
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True)
class Choice:
    """What somebody chose; an application has a provider or targets, or neither."""

    kind: ApplicationKind | None = None
    provider: str = ""
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class Places:
    """All places of a piped; of providers an application has exactly one."""

    options: tuple[Place, ...] = ()
    are_providers: bool = False

    @property
    def default(self) -> str:
        """The only option there is."""
        return self.options[0].value if len(self.options) == 1 else ""

    def of_kind(self, kind: ApplicationKind) -> "Places":
        """Without the providers of other kinds; a plugin may deploy any kind."""
        if not self.are_providers:
            return self
        return replace(self, options=tuple(p for p in self.options if p.owner == kind.name))

    def lacks(self, kind: ApplicationKind) -> bool:
        """Whether nothing here can deploy the kind.

        Kubernetes is also what an application of plugins calls itself for want of a kind, and one
        of scripts needs no provider.
        """
        is_certain = self.are_providers and kind is not ApplicationKind.KUBERNETES
        return is_certain and not self.of_kind(kind).options

    def choose(self, values: Sequence[str]) -> Choice:
        """What the values of a form mean, or UserMistake."""
        by_value = {place.value: place for place in self.options}
        wanted = tuple(dict.fromkeys(value for value in values if value and value != NO_TARGET))
        if unknown := [value for value in wanted if value not in by_value]:
            raise UserMistake(f"The piped has no {unknown[0]} any more; choose another one.")
        if not self.options:
            return Choice()
        if self.are_providers:
            return _provider([by_value[value] for value in wanted])
        if not wanted and NO_TARGET not in values:
            raise UserMistake("Choose where it is deployed to.")
        if wanted and NO_TARGET in values:
            raise UserMistake("Choose deploy targets or none, not both.")
        return Choice(targets=_by_owner([by_value[value] for value in wanted]))


def places_of(piped: Piped) -> Places:
    """What the piped told about itself; one with providers is of the first generation."""
    providers = [(p.type, p.name) for p in piped.platform_providers]
    providers += [(p.type, p.name) for p in piped.cloud_providers]
    known = [one for one in dict.fromkeys(providers) if one[0] in ApplicationKind.__members__]
    if known:
        return Places(tuple(Place(*one) for one in known), are_providers=True)
    return Places(
        tuple(
            Place(plugin.name, name) for plugin in piped.plugins for name in plugin.deploy_targets
        )
    )


def _provider(wanted: Sequence[Place]) -> Choice:
    if len(wanted) != 1:
        raise UserMistake("Choose one platform provider.")
    return Choice(ApplicationKind[wanted[0].owner], wanted[0].name)


def _by_owner(places: Sequence[Place]) -> dict[str, tuple[str, ...]]:
    owners = dict.fromkeys(place.owner for place in places)
    return {owner: tuple(p.name for p in places if p.owner == owner) for owner in owners}
