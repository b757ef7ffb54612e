# SPDX-License-Identifier: Apache-2.0
"""The envelope of every configuration file: `apiVersion`, `kind` and `spec`."""

from dataclasses import dataclass
from enum import Enum

from pydantic import Field

from pipecd.config.decode import Decoder, Level, entry_of
from pipecd.config.spec import Spec
from pipecd.config.yaml_tree import Entry, Map, Mark, Node, Scalar, YamlMistake, read_yaml

API_VERSION = "pipecd.dev/v1beta1"


class Generation(Enum):
    """The generation of piped whose rules a file is read by."""

    V0 = "v0"
    """Unknown keys are mistakes, and a pipeline has only stages of v0."""
    V1 = "v1"
    """Unknown keys are ignored, and plugins check their own settings."""

    @property
    def unknown(self) -> Level:
        """Return the severity of unknown keys."""
        return Level.MISTAKE if self is Generation.V0 else Level.WARNING


class _Head(Spec):
    """The keys at the top of a file; the kind decides the type of `spec`."""

    api_version: str = ""
    kind: str = ""
    spec: object = Field(default=None)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The kind of a file and its undecoded `spec`."""

    decoder: Decoder
    kind: str
    mark: Mark
    """The position of the kind."""
    spec: Node
    root: Map

    def check(self, unknown: Level) -> None:
        """Add the mistakes of `apiVersion` and `kind`, and unknown keys beside them."""
        decoder, root = self.decoder, self.root
        decoder.decode(root, _Head, unknown=unknown)
        entry, version = entry_of(root, "apiVersion"), _text(root, "apiVersion")
        if version != API_VERSION and not decoder.has_mistake("apiVersion"):
            what = f"unsupported version: {version}" if version else "apiVersion is required"
            at = entry.value.mark if entry else root.mark
            decoder.add(f"{what}, write {API_VERSION}", at=at, path=("apiVersion",))

    def refuse_kind(self, *kinds: str) -> None:
        """Add the mistake that the file has none of these kinds."""
        if self.decoder.has_mistake("kind"):
            return
        what = f"unsupported kind: {self.kind}" if self.kind else "kind is required"
        choices = kinds[0] if len(kinds) == 1 else f"one of {', '.join(kinds)}"
        self.decoder.add(f"{what}, write {choices}", at=self.mark, path=("kind",))


# Explaining the mistakes of a file takes much longer than reading it.
_MAX_VALUES = 20_000


def open_envelope(text: bytes | str, *, file: str) -> Envelope:
    """Return the envelope of a file, to be checked; its decoder collects the mistakes."""
    decoder = Decoder(file)
    try:
        root = read_yaml(text, max_values=_MAX_VALUES)
    except YamlMistake as e:
        decoder.add(e.what, at=e.mark, path=())
        decoder.raise_mistakes()
        raise
    if not isinstance(root, Map):
        if root != Scalar(None, root.mark):
            what = "must be an object with the keys apiVersion, kind and spec"
            decoder.add(what, at=root.mark, path=())
            decoder.raise_mistakes()
        root = Map((), root.mark)
    kind, spec = entry_of(root, "kind"), entry_of(root, "spec")
    return Envelope(
        decoder=decoder,
        kind=_text(root, "kind"),
        mark=kind.value.mark if kind else root.mark,
        spec=spec.value if spec else Scalar(None, root.mark),
        root=root,
    )


def _text(root: Map, key: str) -> str:
    """Return the string of a key at the top of a file, or ""."""
    entry: Entry | None = entry_of(root, key)
    value = entry.value.value if entry and isinstance(entry.value, Scalar) else None
    return value if isinstance(value, str) else ""
