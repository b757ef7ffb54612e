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
)
from pipecd.config.application_v0 import V0ApplicationDecoder, v0_kind_of, without_sections
from pipecd.config.catalog import Catalog
from pipecd.config.controlplane import ControlPlaneSpec, camel_cased_sso
from pipecd.config.decode import Level
from pipecd.config.envelope import Envelope, Generation, open_envelope
from pipecd.config.piped import PipedSpec
from pipecd.config.piped_v0 import decode_piped, is_v0
from pipecd.config.report import ConfigMistake, LocatedReference, Mistake
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
    """An application file of any kind, translated to plugin settings."""

    kind: str
    application_kind: ApplicationKind | None
    spec: ApplicationSpec
    warnings: tuple[Mistake, ...] = ()
    references: tuple[LocatedReference, ...] = ()


@dataclass(frozen=True, slots=True)
class PipedConfig:
    """A piped file of either generation, translated to plugin settings."""

    generation: Generation
    spec: PipedSpec
    warnings: tuple[Mistake, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """A file of any kind."""

    kind: str
    spec: Spec
    warnings: tuple[Mistake, ...] = ()
    references: tuple[LocatedReference, ...] = ()


def read_application(
    text: bytes | str, *, file: str, catalog: Catalog, reader: Generation | None = None
) -> ApplicationConfig:
    """Return an application, read by the rules of the generation of its kind.

    With `reader` it is read by the rules of that generation of piped instead.
    """
    reader = reader or _generation_of(text, file, catalog)
    envelope = _open(text, file, reader)
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
        check_sections(decoder, node, catalog)
    else:
        generic = (APPLICATION,) if reader is Generation.V1 else ()
        envelope.refuse_kind(*generic, *catalog.v0_kinds)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    return ApplicationConfig(
        envelope.kind,
        kind.application_kind if kind else None,
        spec,
        decoder.report.warnings,
        decoder.references,
    )


def read_piped(text: bytes | str, *, file: str, catalog: Catalog) -> PipedConfig:
    """Return the configuration of a piped; the keys of the file decide its generation."""
    generation = Generation.V1
    envelope = _open(text, file, generation)
    if is_v0(envelope.spec):
        generation = Generation.V0
        envelope = _open(text, file, generation)
    decoder = envelope.decoder
    if envelope.kind != PIPED:
        envelope.refuse_kind(PIPED)
        decoder.raise_mistakes()
    spec = decode_piped(decoder, envelope.spec, catalog)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    return PipedConfig(generation, spec, decoder.report.warnings)


def read_control_plane(text: bytes | str, *, file: str) -> ControlPlaneSpec:
    """Return the configuration of a control plane."""
    envelope = _open(text, file, Generation.V0)
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
    envelope = _open(text, file, reader)
    if envelope.kind and envelope.kind != kind:
        envelope.decoder.raise_mistakes()
        return None
    return _spec_of(envelope, kind, to, reader)


def read_file(
    text: bytes | str, *, file: str, catalog: Catalog, reader: Generation | None = None
) -> Config:
    """Return a file of any kind, as `pipectl lint` reads it."""
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
            return Config(kind, read.spec, read.warnings, read.references)


def _generation_of(text: bytes | str, file: str, catalog: Catalog) -> Generation:
    kind = open_envelope(text, file=file, unknown=Level.IGNORED).kind
    return Generation.V0 if catalog.v0_kind(kind) else Generation.V1


def _open(text: bytes | str, file: str, reader: Generation) -> Envelope:
    return open_envelope(text, file=file, unknown=reader.unknown)


def _spec_of(envelope: Envelope, kind: str, to: type[SpecT], reader: Generation) -> SpecT:
    decoder = envelope.decoder
    if envelope.kind != kind:
        envelope.refuse_kind(kind)
        decoder.raise_mistakes()
    spec = decoder.decode(envelope.spec, to, path=("spec",), unknown=reader.unknown)
    decoder.raise_mistakes()
    assert spec is not None, "a file without mistakes has a value"  # noqa: S101
    return spec
