# SPDX-License-Identifier: Apache-2.0
"""What pydantic found wrong, in the words of the person who wrote the file."""

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipecd.config.report import ConfigMistake, Mention, Mistake, Path, Report, dotted
from pipecd.config.spec import Spec
from pipecd.config.units import Duration, Percentage, Replicas
from pipecd.config.yaml_tree import Entry, List, Map, Mark, Node, Scalar, of_plain, to_plain

_EXPECTED = {
    "string_type": "a string",
    "string_sub_type": "a string",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "mapping_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
}


def explain(error: ErrorDetails) -> str:
    """Return what is wrong and, where one can tell, what to write."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _EXPECTED:
        return _wrong_type(_EXPECTED[kind], error["input"])
    match kind:
        case "missing":
            return "must be set"
        case "value_error":
            return str(context.get("error", error["msg"]))
        case "literal_error":
            return f"must be {_quoted(context)}"
        case _:
            return error["msg"].replace("Input should be", "must be", 1)


def unknown_word(what: str, word: str, known: Iterable[str]) -> str:
    """Return `what` about an unknown word, with the known one that was probably meant."""
    close = get_close_matches(word.lower(), lower := {k.lower(): k for k in known}, n=1)
    return f'{what}, did you mean "{lower[close[0]]}"?' if close else what


def _quoted(context: Mapping[str, Any]) -> str:
    return str(context.get("expected", "one of the known values")).replace("'", '"')


def _wrong_type(expected: str, given: object) -> str:
    text = f"must be {expected}, not {_kind(given)}"
    if expected == "a string" and isinstance(given, bool | int | float):
        return f"{text}, put it in quotes"
    if expected in ("true or false", "a whole number", "a number") and isinstance(given, str):
        return f"{text}, write it without quotes"
    if expected == "a list" and isinstance(given, str | int | float):
        return f"{text}, begin each item with a dash"
    return text


def _kind(given: object) -> str:
    words: tuple[tuple[Any, str], ...] = (
        (type(None), "null"),
        (bool, "a boolean"),
        (int, "a number"),
        (float, "a fraction"),
        (str, "a string"),
        (Sequence, "a list"),
    )
    return next((word for kind, word in words if isinstance(given, kind)), "an object")


_UNITS = (Duration, Percentage, Replicas)
_SCALARS = (str, bool, int, float)


@dataclass(frozen=True, slots=True)
class Object:
    """The fields of a type."""

    type: type[Spec]


@dataclass(frozen=True, slots=True)
class Items:
    """Any number of values of one shape."""

    item: "Shape"
    is_tuple: bool


@dataclass(frozen=True, slots=True)
class Table:
    """Values of one shape by free keys."""

    value: "Shape"


@dataclass(frozen=True, slots=True)
class Word:
    """A single value; `zero` is what an absent one is."""

    zero: bool | int | float | str


@dataclass(frozen=True, slots=True)
class Unit:
    """A duration, a percentage or a number of replicas, for which null is no value."""

    type: type[Duration | Percentage | Replicas]


@dataclass(frozen=True, slots=True)
class Anything:
    """Whatever the file says."""


Shape: TypeAlias = Object | Items | Table | Word | Unit | Anything


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type: its attribute, its shape, its default or None."""

    name: str
    shape: Shape
    default: object


@cache
def fields_of(spec: type[Spec]) -> Mapping[str, Field]:
    """Return the fields of a type by the key that files write."""
    return {
        info.alias or name: Field(name, shape_of(info.annotation), info.default)
        for name, info in spec.model_fields.items()
    }


@cache
def spellings_of(spec: type[Spec]) -> Mapping[str, str]:
    """Return the keys of a type by their lower-case spelling."""
    return {key.lower(): key for key in reversed(list(fields_of(spec)))}


def shape_of(annotation: Any) -> Shape:
    """Return what an annotation expects."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return shape_of(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        options = [a for a in get_args(annotation) if a is not type(None)]
        return shape_of(options[0]) if len(options) == 1 else Anything()
    if origin is Literal:
        return Word("")
    if isinstance(origin, type):
        return _of_generic(origin, get_args(annotation))
    if isinstance(annotation, type):
        return _of_type(annotation)
    return Anything()


def _of_generic(origin: type, arguments: tuple[Any, ...]) -> Shape:
    if issubclass(origin, Mapping):
        return Table(shape_of(arguments[1]))
    if issubclass(origin, Sequence):
        return Items(shape_of(arguments[0]), is_tuple=issubclass(origin, tuple))
    return Anything()


def _of_type(annotation: type) -> Shape:
    if issubclass(annotation, Spec):
        return Object(annotation)
    if issubclass(annotation, _UNITS):
        return Unit(annotation)
    if annotation in _SCALARS:
        return Word(annotation())
    return Anything()


_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a place."""

    what: str
    mark: Mark
    path: Path


class Shaping:
    """One pass over a tree, and what was found on the way."""

    def __init__(self) -> None:
        self.unknown: list[Finding] = []
        self.tolerated: list[Finding] = []
        """Unknown keys where no reader minds them."""
        self.wrong: list[Finding] = []

    def shaped(self, node: Node, shape: Shape, path: Path) -> Node | None:
        """Return the values that count, or None for one that is as good as absent."""
        is_null = isinstance(node, Scalar) and node.value is None
        if isinstance(shape, Anything) or not is_null:
            return self._present(node, shape, path)
        if isinstance(shape, Unit):
            what = f"invalid {shape.type.__name__.lower()}: null, leave it out or write a value"
            self.wrong.append(Finding(what, node.mark, path))
        return None

    def _present(self, node: Node, shape: Shape, path: Path) -> Node:
        match shape, node:
            case Object(), Map():
                return self._object(node, shape.type, path)
            case Items(), List():
                items = [self._item(n, shape.item, (*path, i)) for i, n in enumerate(node.items)]
                return List(tuple(items), node.mark)
            case Table(), Map():
                values = [(e, self._item(e.value, shape.value, (*path, e.key))) for e in node]
                return Map(tuple(Entry(e.key, value, e.mark) for e, value in values), node.mark)
            case Word(zero=int()), Scalar(value=int() as number) if abs(number) > _LARGEST:
                self.wrong.append(Finding("is too large for a whole number", node.mark, path))
                return Scalar(0, node.mark)
            case _:
                return node

    def _item(self, node: Node, shape: Shape, path: Path) -> Node:
        """Return an element, for which null is the value of an absent one."""
        return self.shaped(node, shape, path) or _zero(shape, node.mark)

    def _object(self, node: Map, spec: type[Spec], path: Path) -> Map:
        fields, spellings = fields_of(spec), spellings_of(spec)
        found: dict[str, Entry] = {}
        for entry in _sorted(node):
            key = entry.key if entry.key in fields else spellings.get(entry.key.lower())
            if key is None:
                what = unknown_word("unknown field", entry.key, fields)
                findings = self.tolerated if spec.tolerant else self.unknown
                findings.append(Finding(what, entry.mark, (*path, entry.key)))
            else:
                found[key] = entry
        kept: list[Entry] = []
        for key, entry in found.items():
            field = fields[key]
            value = self.shaped(entry.value, field.shape, (*path, key))
            if value is not None and not _gives_way(value, field.shape, field.default):
                kept.append(Entry(key, value, entry.mark))
        return Map(tuple(kept), node.mark)


def entry_of(node: Node, key: str) -> Entry | None:
    """Return the entry of an object for a key in any spelling."""
    if not isinstance(node, Map):
        return None
    found = [entry for entry in _sorted(node) if entry.key.lower() == key.lower()]
    return found[-1] if found else None


def _sorted(node: Map) -> list[Entry]:
    """Return entries so that the last spelling of a key wins, as upstream reads them sorted."""
    return sorted(node, key=lambda entry: entry.key)


def built(node: Node, shape: Shape) -> Any:
    """Return the plain values that pydantic checks."""
    match shape, node:
        case Object(), Map():
            fields = fields_of(shape.type)
            return {e.key: built(e.value, fields[e.key].shape) for e in node}
        case Items(), List():
            items = [built(item, shape.item) for item in node.items]
            return tuple(items) if shape.is_tuple else items
        case Table(), Map():
            return {e.key: built(e.value, shape.value) for e in node}
        case _:
            return to_plain(node)


def _gives_way(node: Node, shape: Shape, default: object) -> bool:
    """Say whether a value is the zero of its type, which is the same as none given."""
    if default is None or not isinstance(node, Scalar) or isinstance(node.value, bool):
        return False
    match shape, node.value:
        case Word(zero=str()), value:
            return value == ""
        case Word(zero=int() | float()), int() | float() as value:
            return value == 0
        case Unit(), str() as text:
            return _is_zero(text, shape)
        case Unit(), value:
            return value == 0
        case _:
            return False


def _is_zero(text: str, shape: Unit) -> bool:
    try:
        return str(shape.type.parse(text)).rstrip("s%") == "0"
    except ValueError:
        return False


def _zero(shape: Shape, mark: Mark) -> Node:
    match shape:
        case Word():
            return Scalar(shape.zero, mark)
        case Object() | Table():
            return Map((), mark)
        case Items():
            return List((), mark)
        case Unit() | Anything():
            return Scalar(None, mark)


def place(node: Node, shape: Shape, loc: Path) -> tuple[Path, Mark]:
    """Return the path of a place that pydantic named, and its mark.

    What is absent has the mark of the object it is absent from.
    """
    path: Path = ()
    for at, part in enumerate(loc):
        child = _child(node, shape, part)
        if child is None:
            is_key = at == len(loc) - 1 and part != "[key]"
            return ((*path, _key(shape, part)) if is_key else path), node.mark
        node, shape = child
        path = (*path, part)
    return path, node.mark


def _key(shape: Shape, part: int | str) -> int | str:
    """Return the key that files write; pydantic names an absent field by its attribute."""
    if not isinstance(shape, Object):
        return part
    return next((key for key, f in fields_of(shape.type).items() if f.name == part), part)


def _child(node: Node, shape: Shape, part: int | str) -> tuple[Node, Shape] | None:
    match node, part:
        case Map(), str():
            entry = node.get(part)
            return (entry.value, _shape_at(shape, part)) if entry else None
        case List(), int() if part < len(node.items):
            return node.items[part], shape.item if isinstance(shape, Items) else Anything()
        case _:
            return None


def _shape_at(shape: Shape, key: str) -> Shape:
    match shape:
        case Object():
            fields = fields_of(shape.type)
            return fields[key].shape if key in fields else Anything()
        case Table():
            return shape.value
        case _:
            return Anything()


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
