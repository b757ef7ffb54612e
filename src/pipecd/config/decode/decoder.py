# SPDX-License-Identifier: Apache-2.0
"""Decodes the parts of one file and remembers what is wrong with each.

A tree is first put into the shape of the type (`shaping`), then pydantic checks the values, and
what it finds is led back to the line (`place`) and put into words (`explain`).
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import TypeVar

from pydantic import ValidationError

from pipecd.config.decode.explain import explain
from pipecd.config.decode.place import place
from pipecd.config.decode.shape import Object, fields_of
from pipecd.config.decode.shaping import Shaping, built
from pipecd.config.report import ConfigMistake, Mention, Mistake, Path, Report, dotted
from pipecd.config.spec import Spec
from pipecd.config.yamltree import Map, Mark, Node, of_plain

SpecT = TypeVar("SpecT", bound=Spec)


class Level(Enum):
    """How much a finding weighs."""

    MISTAKE = auto()
    """The file cannot be used."""
    WARNING = auto()
    """The file is used; what is named is ignored or fails later."""
    IGNORED = auto()


class Decoder:
    """The findings of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Level, list[Mistake]] = {level: [] for level in Level}
        self._mentions: list[Mention] = []

    @property
    def mentions(self) -> tuple[Mention, ...]:
        """Return where the decoded parts name what other files have."""
        return tuple(self._mentions)

    @property
    def report(self) -> Report:
        """Return everything found so far."""
        return Report.of(self._found[Level.MISTAKE], self._found[Level.WARNING])

    def has_mistake(self, path: str) -> bool:
        """Say whether something is wrong with a value already."""
        return any(mistake.path == path for mistake in self._found[Level.MISTAKE])

    def raise_mistakes(self) -> None:
        """Raise ConfigMistake if anything found keeps the file from being used."""
        if self._found[Level.MISTAKE]:
            raise ConfigMistake(self.report)

    def tell(self, what: str, *, at: Mark, path: Path, level: Level = Level.MISTAKE) -> None:
        """Remember something that is wrong."""
        self._found[level].append(self._mistake(what, at, path))

    def decode(
        self,
        node: Node,
        to: type[SpecT],
        *,
        path: Path = (),
        unknown: Level = Level.WARNING,
        wrong: Level = Level.MISTAKE,
    ) -> SpecT | None:
        """Return the value of a part, null being an empty one; None when it is wrong.

        `unknown` is the weight of keys that the type does not know, `wrong` that of bad values.
        """
        shape, shaping = Object(to), Shaping()
        shaped = shaping.shaped(node, shape, path) or Map((), node.mark)
        tolerated = Level.WARNING if unknown is Level.MISTAKE else unknown
        for level, findings in (
            (unknown, shaping.unknown),
            (tolerated, shaping.tolerated),
            (wrong, shaping.wrong),
        ):
            for found in findings:
                self.tell(found.what, at=found.mark, path=found.path, level=level)
        try:
            value = to.model_validate(built(shaped, shape), by_alias=True, by_name=False)
        except ValidationError as e:
            for error in e.errors(include_url=False):
                where, mark = place(shaped, shape, error["loc"])
                self.tell(explain(error), at=mark, path=(*path, *where), level=wrong)
            return None
        if shaping.wrong:
            return None
        for where, part in _parts(value, ()):
            for advice in part.advice():
                at, mark = place(shaped, shape, (*where, *advice.at))
                self.tell(advice.what, at=mark, path=(*path, *at), level=Level.WARNING)
            for reference in part.references():
                at, mark = place(shaped, shape, (*where, *reference.at))
                self._mentions.append(Mention(self._mistake("", mark, (*path, *at)), reference))
        return value

    def _mistake(self, what: str, at: Mark, path: Path) -> Mistake:
        return Mistake(self.file, at.line, at.column, dotted(path), what)


def decode_plain(value: object, to: type[SpecT], *, what: str) -> SpecT:
    """Return a part that came as plain values, such as the options a plugin is handed as JSON.

    `what` stands for the file in mistakes; unknown keys are ignored.
    """
    decoder = Decoder(what)
    try:
        node = of_plain(value)
    except ValueError as e:
        raise ConfigMistake(Report((Mistake(what, 0, 0, "", str(e)),))) from e
    decoded = decoder.decode(node, to, unknown=Level.IGNORED)
    if decoded is None:
        raise ConfigMistake(decoder.report)
    return decoded


def _parts(value: object, path: Path) -> list[tuple[Path, Spec]]:
    """Return every part inside a value with its path."""
    match value:
        case Spec():
            inside = [
                found
                for key, field in fields_of(type(value)).items()
                for found in _parts(getattr(value, field.name), (*path, key))
            ]
            return [(path, value), *inside]
        case tuple():
            items: tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return [found for i, v in enumerate(items) for found in _parts(v, (*path, i))]
        case Mapping():
            table: Mapping[str, object] = value  # pyright: ignore[reportUnknownVariableType]
            return [found for k, v in table.items() for found in _parts(v, (*path, k))]
        case _:
            return []
