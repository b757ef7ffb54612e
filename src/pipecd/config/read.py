# SPDX-License-Identifier: Apache-2.0
"""Reads configuration files of every kind and of both generations.

Each function returns a valid value, or raises ConfigMistake with every mistake of the file. The
value comes with warnings about what upstream ignores, or notices only at run time.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from pipecd.config.application import (
    ApplicationSpec,
    EventWatcherFileSpec,
    check_sections,
    check_stages,
    stage_nodes,
)
from pipecd.config.application_v0 import V0ApplicationDecoder, v0_kind_of, without_sections
from pipecd.config.catalog import Catalog
from pipecd.config.controlplane import ControlPlaneSpec, camel_cased_sso
from pipecd.config.decode import Decoder, entry_of
from pipecd.config.envelope import Envelope, Generation, open_envelope
from pipecd.config.piped import PipedSpec
from pipecd.config.piped_v0 import decode_piped, is_v0
from pipecd.config.report import ConfigMistake, LocatedReference, Mistake
from pipecd.config.spec import Spec
from pipecd.config.unusable import Unusable, without_unusable
from pipecd.config.yaml_tree import Map
from pipecd.model.application import ApplicationKind

__all__ = [
    "ApplicationConfig",
    "Config",
    "ConfigMistake",
    "Generation",
    "PipedConfig",
    "read_application",
    "read_control_plane",
    "read_event_watcher",
    "read_file",
    "read_kind",
    "read_piped",
    "read_startable_piped",
]

APPLICATION = "Application"
PIPED = "Piped"
CONTROL_PLANE = "ControlPlane"
EVENT_WATCHER = "EventWatcher"

SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True, slots=True)
class ApplicationConfig:
    """An application file of any kind, translated to plugin settings."""

    kind: str
    application_kind: ApplicationKind | None
    spec: ApplicationSpec
    warnings: tuple[Mistake, ...] = ()
    references: tuple[LocatedReference, ...] = ()
    unplannable: frozenset[Mistake] = frozenset()
    """The warnings about what cannot be planned."""


@dataclass(frozen=True, slots=True)
class PipedConfig:
    """A piped file of either generation, translated to plugin settings."""

    generation: Generation
    spec: PipedSpec
    warnings: tuple[Mistake, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    """What the file has mistakes in and `spec` therefore lacks."""


@dataclass(frozen=True, slots=True)
class Config:
    """A file of any kind."""

    kind: str
    spec: Spec
    warnings: tuple[Mistake, ...] = ()
    references: tuple[LocatedReference, ...] = ()
    unplannable: frozenset[Mistake] = frozenset()
    """The warnings about what cannot be planned."""


def read_application(
    text: bytes | str, *, file: str, catalog: Catalog, reader: Generation | None = None
) -> ApplicationConfig:
    """Return an application, read by the rules of the generation that the file is written for.

    With `reader` it is read by the rules of that generation of piped instead.
    """
    return _read_application(open_envelope(text, file=file), catalog, reader)


def _read_application(
    envelope: Envelope, catalog: Catalog, reader: Generation | None
) -> ApplicationConfig:
    reader = reader or _generation_of(envelope, catalog)
    envelope.check(reader.unknown)
    decoder, node = envelope.decoder, envelope.spec
    kind = catalog.v0_kind(envelope.kind)
    spec: ApplicationSpec | None = None
    if envelope.kind == APPLICATION and reader is Generation.V0:
        kind = v0_kind_of(decoder, node, catalog)
        node = without_sections(decoder, node)
    if kind:
        spec = V0ApplicationDecoder(decoder, catalog, reader).decode(node, kind)
    elif envelope.kind == APPLICATION and reader is Generation.V1:
        spec = decoder.decode(node, ApplicationSpec, path=("spec",))
        check_stages(decoder, node, catalog)
    else:
        generic = (APPLICATION,) if reader is Generation.V1 else ()
        envelope.refuse_kind(*generic, *catalog.v0_kinds)
    if reader is Generation.V1:
        check_sections(decoder, node, catalog)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    return ApplicationConfig(
        envelope.kind,
        kind.application_kind if kind else None,
        spec,
        decoder.report.warnings,
        decoder.references,
        decoder.report.unplannable,
    )


def _generation_of(envelope: Envelope, catalog: Catalog) -> Generation:
    """Return the generation that a file is written for.

    Upstream's newer piped reads sections and stages of plugins in files of every kind.
    """
    if not catalog.v0_kind(envelope.kind):
        return Generation.V1
    plugins = entry_of(envelope.spec, "plugins")
    has_sections = plugins and isinstance(plugins.value, Map) and plugins.value.entries
    stages = {stage.name for stage in stage_nodes(envelope.spec)}
    has_stages = stages & (catalog.stages.keys() - catalog.v0_stages.keys())
    return Generation.V1 if has_sections or has_stages else Generation.V0


def read_piped(text: bytes | str, *, file: str, catalog: Catalog) -> PipedConfig:
    """Return the configuration of a piped; the keys of the file decide its generation."""
    return _read_piped(open_envelope(text, file=file), catalog)


def read_startable_piped(text: bytes | str, *, file: str, catalog: Catalog) -> PipedConfig:
    """Return the configuration of a piped that starts with what it can.

    Plugins and deploy targets with mistakes are left out; `unusable` says why.
    """
    envelope, unusable = open_envelope(text, file=file), ()
    while True:
        # What a plugin declares about its settings is checked once the file has the right form.
        try:
            return replace(_read_piped(envelope, catalog), unusable=unusable)
        except ConfigMistake as e:
            usable = without_unusable(envelope.spec, e.report.mistakes, catalog)
            if usable is None:
                raise
        spec, more = usable
        envelope = replace(envelope, decoder=Decoder(file), spec=spec)
        unusable = (*unusable, *more)


def _read_piped(envelope: Envelope, catalog: Catalog) -> PipedConfig:
    generation = Generation.V0 if is_v0(envelope.spec) else Generation.V1
    envelope.check(generation.unknown)
    decoder = envelope.decoder
    if envelope.kind != PIPED:
        envelope.refuse_kind(PIPED)
        decoder.raise_mistakes()
    spec = decode_piped(decoder, envelope.spec, catalog)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    return PipedConfig(generation, spec, decoder.report.warnings)


def deploy_target_names(config: PipedConfig) -> dict[str, tuple[str, ...]]:
    """Return the names of the deploy targets of each plugin, also of those that are unusable."""
    names = {p.name: tuple(target.name for target in p.deploy_targets) for p in config.spec.plugins}
    for each in config.unusable:
        if not each.has_name:
            continue
        more = (each.target,) if each.target else ()
        names[each.plugin] = (*names.get(each.plugin, ()), *more)
    return names


def read_control_plane(text: bytes | str, *, file: str) -> ControlPlaneSpec:
    """Return the configuration of a control plane."""
    return _read_control_plane(open_envelope(text, file=file))


def _read_control_plane(envelope: Envelope) -> ControlPlaneSpec:
    envelope = replace(envelope, spec=camel_cased_sso(envelope.spec))
    return _spec_of(envelope, CONTROL_PLANE, ControlPlaneSpec, Generation.V0)


def read_event_watcher(
    text: bytes | str, *, file: str, reader: Generation = Generation.V1
) -> EventWatcherFileSpec | None:
    """Return the `spec` of an event watcher file in `.pipe/`; None for a file of another kind."""
    return read_kind(text, file=file, kind=EVENT_WATCHER, to=EventWatcherFileSpec, reader=reader)


def read_kind(
    text: bytes | str, *, file: str, kind: str, to: type[SpecT], reader: Generation = Generation.V1
) -> SpecT | None:
    """Return the `spec` of a file that has this kind; None for a file of another kind."""
    envelope = open_envelope(text, file=file)
    if envelope.kind and envelope.kind != kind:
        envelope.check(reader.unknown)
        envelope.decoder.raise_mistakes()
        return None
    return _spec_of(envelope, kind, to, reader)


def read_file(
    text: bytes | str, *, file: str, catalog: Catalog, reader: Generation | None = None
) -> Config:
    """Return a file of any kind, as `pipectl lint` reads it."""
    envelope = open_envelope(text, file=file)
    kind = envelope.kind
    plain_kinds: dict[str, type[Spec]] = {EVENT_WATCHER: EventWatcherFileSpec, **catalog.kinds}
    match kind:
        case "Piped":
            piped = _read_piped(envelope, catalog)
            return Config(kind, piped.spec, piped.warnings)
        case "ControlPlane":
            return Config(kind, _read_control_plane(envelope))
        case _ if kind in plain_kinds:
            spec = _spec_of(envelope, kind, plain_kinds[kind], reader or Generation.V1)
            return Config(kind, spec, envelope.decoder.report.warnings)
        case _:
            read = _read_application(envelope, catalog, reader)
            return Config(kind, read.spec, read.warnings, read.references, read.unplannable)


def _spec_of(envelope: Envelope, kind: str, to: type[SpecT], reader: Generation) -> SpecT:
    envelope.check(reader.unknown)
    decoder = envelope.decoder
    if envelope.kind != kind:
        envelope.refuse_kind(kind)
        decoder.raise_mistakes()
    spec = decoder.decode(envelope.spec, to, path=("spec",), unknown=reader.unknown)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    return spec
