# SPDX-License-Identifier: Apache-2.0
"""Reads configuration files of every kind and of both generations.

Each function returns a value that is right, or raises ConfigMistake with every mistake of the
file. Warnings come with the value: what upstream ignores or finds out later.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from pipecd.config.application import (
    ApplicationSpec,
    EventWatcherFileSpec,
    check_sections,
    check_stages,
)
from pipecd.config.application_v0 import V0Reading, platform_of, without_sections
from pipecd.config.catalog import Catalog
from pipecd.config.controlplane import ControlPlaneSpec, camel_cased_sign_ins
from pipecd.config.decode import Level
from pipecd.config.envelope import Envelope, Generation, open_envelope
from pipecd.config.piped import PipedSpec
from pipecd.config.piped_v0 import decode_piped, is_v0
from pipecd.config.report import ConfigMistake, Mention, Mistake
from pipecd.config.spec import Spec
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
]

APPLICATION = "Application"
PIPED = "Piped"
CONTROL_PLANE = "ControlPlane"
EVENT_WATCHER = "EventWatcher"

SpecT = TypeVar("SpecT", bound=Spec)


@dataclass(frozen=True, slots=True)
class ApplicationConfig:
    """An application file, whatever its kind, in the form of plugins."""

    kind: str
    application_kind: ApplicationKind | None
    spec: ApplicationSpec
    warnings: tuple[Mistake, ...] = ()
    mentions: tuple[Mention, ...] = ()


@dataclass(frozen=True, slots=True)
class PipedConfig:
    """A piped file, whatever its generation, in the form of plugins."""

    generation: Generation
    spec: PipedSpec
    warnings: tuple[Mistake, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """A file of any kind."""

    kind: str
    spec: Spec
    warnings: tuple[Mistake, ...] = ()
    mentions: tuple[Mention, ...] = ()


def read_application(
    text: bytes | str, *, file: str, catalog: Catalog, reader: Generation | None = None
) -> ApplicationConfig:
    """Return an application, read with the rules of its kind's generation.

    `reader` asks for the rules of one generation of pipeds instead, as upstream has two.
    """
    reader = reader or _generation_of(text, file, catalog)
    return _application(_open(text, file, reader), catalog, reader)


def read_piped(text: bytes | str, *, file: str, catalog: Catalog) -> PipedConfig:
    """Return what a piped is told; which generation the file is of is seen from its keys."""
    envelope = _open(text, file, Generation.V1)
    if is_v0(envelope.spec):
        envelope = _open(text, file, Generation.V0)
    return _piped(envelope, catalog)


def read_control_plane(text: bytes | str, *, file: str) -> ControlPlaneSpec:
    """Return what a control plane is told."""
    envelope = _open(text, file, Generation.V0)
    envelope = replace(envelope, spec=camel_cased_sign_ins(envelope.spec))
    return _spec_of(envelope, CONTROL_PLANE, ControlPlaneSpec, Generation.V0)


def read_event_watcher(
    text: bytes | str, *, file: str, reader: Generation = Generation.V1
) -> EventWatcherFileSpec | None:
    """Return the events of a file in `.pipe/`, None for a file of another kind."""
    return read_kind(text, file=file, kind=EVENT_WATCHER, to=EventWatcherFileSpec, reader=reader)


def read_kind(
    text: bytes | str, *, file: str, kind: str, to: type[SpecT], reader: Generation = Generation.V1
) -> SpecT | None:
    """Return the `spec` of a file that plugins read, None for a file of another kind."""
    envelope = _open(text, file, reader)
    if envelope.kind and envelope.kind != kind:
        envelope.decoder.raise_mistakes()
        return None
    return _spec_of(envelope, kind, to, reader)


def read_file(
    text: bytes | str, *, file: str, catalog: Catalog, reader: Generation | None = None
) -> Config:
    """Return a file of any kind, for those who check files without knowing what they are."""
    kind = open_envelope(text, file=file, unknown=Level.IGNORED).kind
    reader = reader or _generation_of(text, file, catalog)
    plain_kinds: dict[str, type[Spec]] = {EVENT_WATCHER: EventWatcherFileSpec, **catalog.kinds}
    match kind:
        case "Piped":
            piped = read_piped(text, file=file, catalog=catalog)
            return Config(kind, piped.spec, piped.warnings)
        case "ControlPlane":
            return Config(kind, read_control_plane(text, file=file))
        case _ if kind in plain_kinds:
            envelope = _open(text, file, reader)
            spec = _spec_of(envelope, kind, plain_kinds[kind], reader)
            return Config(kind, spec, envelope.decoder.report.warnings)
        case _:
            read = read_application(text, file=file, catalog=catalog, reader=reader)
            return Config(kind, read.spec, read.warnings, read.mentions)


def _generation_of(text: bytes | str, file: str, catalog: Catalog) -> Generation:
    kind = open_envelope(text, file=file, unknown=Level.IGNORED).kind
    return Generation.V0 if catalog.v0_kind(kind) else Generation.V1


def _open(text: bytes | str, file: str, reader: Generation) -> Envelope:
    return open_envelope(text, file=file, unknown=reader.unknown)


def _application(envelope: Envelope, catalog: Catalog, reader: Generation) -> ApplicationConfig:
    decoder, node = envelope.decoder, envelope.spec
    kind = catalog.v0_kind(envelope.kind)
    spec: ApplicationSpec | None = None
    if envelope.kind == APPLICATION and reader is Generation.V0:
        kind = platform_of(decoder, node, catalog)
        node = without_sections(decoder, node)
    if kind:
        spec = V0Reading(decoder, catalog, reader).application(node, kind)
    elif envelope.kind == APPLICATION and reader is Generation.V1:
        spec = decoder.decode(node, ApplicationSpec, path=("spec",))
        check_stages(decoder, node, catalog)
        check_sections(decoder, node, catalog)
    else:
        envelope.refuse_kind(*_application_kinds(catalog, reader))
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    application_kind = kind.application_kind if kind else None
    warnings, mentions = decoder.report.warnings, decoder.mentions
    return ApplicationConfig(envelope.kind, application_kind, spec, warnings, mentions)


def _application_kinds(catalog: Catalog, reader: Generation) -> tuple[str, ...]:
    return (*([APPLICATION] if reader is Generation.V1 else []), *catalog.v0_kinds)


def _piped(envelope: Envelope, catalog: Catalog) -> PipedConfig:
    decoder = envelope.decoder
    if envelope.kind != PIPED:
        envelope.refuse_kind(PIPED)
        decoder.raise_mistakes()
    spec = decode_piped(decoder, envelope.spec, catalog)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    generation = Generation.V0 if is_v0(envelope.spec) else Generation.V1
    return PipedConfig(generation, spec, decoder.report.warnings)


def _spec_of(envelope: Envelope, kind: str, to: type[SpecT], reader: Generation) -> SpecT:
    decoder = envelope.decoder
    if envelope.kind != kind:
        envelope.refuse_kind(kind)
        decoder.raise_mistakes()
    spec = decoder.decode(envelope.spec, to, path=("spec",), unknown=reader.unknown)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    return spec
