# SPDX-License-Identifier: Apache-2.0
"""What every configuration file begins with: `apiVersion`, `kind` and `spec`."""

from dataclasses import dataclass
from enum import Enum

from pydantic import Field

from pipecd.config.decode import Decoder, Level, entry_of
from pipecd.config.spec import Spec
from pipecd.config.yaml_tree import Entry, Map, Mark, Node, Scalar, YamlMistake, read_yaml

API_VERSION = "pipecd.dev/v1beta1"


class Generation(Enum):
    """Whose rules a file is read by."""

    V0 = "v0"
    """Unknown keys are refused, and a pipeline names the stages of v0 only."""
    V1 = "v1"
    """Unknown keys are ignored, and what plugins read is checked when they read it."""

    @property
    def unknown(self) -> Level:
        """Return the weight of unknown keys."""
        return Level.MISTAKE if self is Generation.V0 else Level.WARNING


class _Head(Spec):
    """The keys at the top of a file; `spec` is decoded by its kind."""

    api_version: str = ""
    kind: str = ""
    spec: object = Field(default=None)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A file of which the kind is known."""

    decoder: Decoder
    kind: str
    mark: Mark
    """Where the kind stands."""
    spec: Node

    def refuse_kind(self, *kinds: str) -> None:
        """Remember that the file is of none of these kinds."""
        if self.decoder.has_mistake("kind"):
            return
        what = f"unsupported kind: {self.kind}" if self.kind else "kind is required"
        self.decoder.tell(f"{what}, write {_one_of(kinds)}", at=self.mark, path=("kind",))


def open_envelope(text: bytes | str, *, file: str, unknown: Level) -> Envelope:
    """Return the parts of a file; whatever is wrong is remembered in the decoder."""
    decoder = Decoder(file)
    try:
        root = read_yaml(text)
    except YamlMistake as e:
        decoder.tell(e.what, at=e.mark, path=())
        decoder.raise_mistakes()
        raise
    if not isinstance(root, Map):
        if root != Scalar(None, root.mark):
            what = "must be an object with the keys apiVersion, kind and spec"
            decoder.tell(what, at=root.mark, path=())
            decoder.raise_mistakes()
        root = Map((), root.mark)
    decoder.decode(root, _Head, unknown=unknown)
    kind, spec = entry_of(root, "kind"), entry_of(root, "spec")
    _check_version(decoder, root)
    return Envelope(
        decoder=decoder,
        kind=_text(root, "kind"),
        mark=kind.value.mark if kind else root.mark,
        spec=spec.value if spec else Scalar(None, root.mark),
    )


def _check_version(decoder: Decoder, root: Map) -> None:
    entry, version = entry_of(root, "apiVersion"), _text(root, "apiVersion")
    if version != API_VERSION and not decoder.has_mistake("apiVersion"):
        what = f"unsupported version: {version}" if version else "apiVersion is required"
        at = entry.value.mark if entry else root.mark
        decoder.tell(f"{what}, write {API_VERSION}", at=at, path=("apiVersion",))


def _text(root: Map, key: str) -> str:
    """Return a text at the top of a file, "" when there is none."""
    entry: Entry | None = entry_of(root, key)
    value = entry.value.value if entry and isinstance(entry.value, Scalar) else None
    return value if isinstance(value, str) else ""


def _one_of(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
