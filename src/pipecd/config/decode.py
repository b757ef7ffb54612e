# SPDX-License-Identifier: Apache-2.0
"""Decodes a YAML tree into a configuration type and reports every mistake with its line.

The `Normalizer` matches keys and applies defaults, pydantic validates the values, and `locate`
and `explain` turn its errors into mistakes at a position of the file.
"""

import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, auto
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipecd.config.report import ConfigMistake, LocatedReference, Mistake, Path, Report, dotted
from pipecd.config.spec import Spec
from pipecd.config.units import Duration, Percentage, Replicas, Size
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
    """Return what is wrong and, if it is clear, what to write."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _EXPECTED:
        return _wrong_type(_EXPECTED[kind], error["input"])
    match kind:
        case "missing":
            return "must be set"
        case "value_error":
            return str(context.get("error", error["msg"]))
        case "literal_error":
            expected = str(context.get("expected", "one of the allowed values"))
            return f"must be {expected}".replace("'", '"')
        case _:
            return error["msg"].replace("Input should be", "must be", 1)


# More mistakes help nobody, and finding their positions takes long.
_MAX_MISTAKES = 200
# No word that a file may contain is longer.
_MAX_WORD = 100


def unknown_word(what: str, word: str, known: Iterable[str]) -> str:
    """Return `what` about an unknown word, with the most similar known word as a suggestion."""
    lower = {k.lower(): k for k in known}
    close = get_close_matches(word.lower()[:_MAX_WORD], lower, n=1)
    return f'{what}, did you mean "{lower[close[0]]}"?' if close else what


def _wrong_type(expected: str, given: object) -> str:
    names: tuple[tuple[Any, str], ...] = (
        (type(None), "null"),
        (bool, "a boolean"),
        (int, "a number"),
        (float, "a fraction"),
        (str, "a string"),
        (Sequence, "a list"),
    )
    actual = next((name for kind, name in names if isinstance(given, kind)), "an object")
    text = f"must be {expected}, not {actual}"
    if expected == "a string" and isinstance(given, bool | int | float):
        return f"{text}, put it in quotes"
    if expected in ("true or false", "a whole number", "a number") and isinstance(given, str):
        return f"{text}, write it without quotes"
    if expected == "a list" and isinstance(given, str | int | float):
        return f"{text}, begin each item with a dash"
    return text


_UNITS = (Duration, Percentage, Replicas, Size)
_SCALARS = (str, bool, int, float)


@dataclass(frozen=True, slots=True)
class ObjectType:
    """An object with the fields of a Spec."""

    type: type[Spec]


@dataclass(frozen=True, slots=True)
class ListType:
    """A list of values of one type."""

    item: "FieldType"
    is_tuple: bool


@dataclass(frozen=True, slots=True)
class MapType:
    """A map with free keys and values of one type."""

    value: "FieldType"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A scalar; `zero` is the zero value of its type."""

    zero: bool | int | float | str


@dataclass(frozen=True, slots=True)
class UnitType:
    """A duration, a percentage or a number of replicas; null is invalid."""

    type: type[Duration | Percentage | Replicas | Size]


@dataclass(frozen=True, slots=True)
class AnyType:
    """Any value."""


FieldType: TypeAlias = ObjectType | ListType | MapType | ScalarType | UnitType | AnyType


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a Spec: its attribute, its type, its default or None."""

    name: str
    shape: FieldType
    default: object


@cache
def fields_of(spec: type[Spec]) -> Mapping[str, Field]:
    """Return the fields of a type by the key that files write."""
    return {
        info.alias or name: Field(name, field_type(info.annotation), info.default)
        for name, info in spec.model_fields.items()
    }


@cache
def spellings_of(spec: type[Spec]) -> Mapping[str, str]:
    """Return the keys of a type by their lower-case spelling."""
    return {key.lower(): key for key in reversed(list(fields_of(spec)))}


def field_type(annotation: Any) -> FieldType:
    """Return the field type of an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return field_type(arguments[0])
    result: FieldType = AnyType()
    if origin in (Union, types.UnionType):
        options = [a for a in arguments if a is not type(None)]
        if len(options) == 1:
            result = field_type(options[0])
    elif origin is Literal:
        result = ScalarType("")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        result = MapType(field_type(arguments[1]))
    elif isinstance(origin, type) and issubclass(origin, Sequence):
        result = ListType(field_type(arguments[0]), is_tuple=issubclass(origin, tuple))
    elif annotation in _SCALARS:
        result = ScalarType(annotation())
    elif isinstance(annotation, type) and issubclass(annotation, Spec):
        result = ObjectType(annotation)
    elif isinstance(annotation, type) and issubclass(annotation, _UNITS):
        result = UnitType(annotation)
    return result


_MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake at a position of the file whose severity the reader decides."""

    what: str
    mark: Mark
    path: Path


class Normalizer:
    """Normalizes a tree for a type: the keys of the type, no nulls and zeros with a default."""

    def __init__(self) -> None:
        self.unknown: list[Problem] = []
        self.tolerated_unknown: list[Problem] = []
        """Unknown keys that even a strict read only warns about."""
        self.wrong: list[Problem] = []

    def normalize(self, node: Node, shape: FieldType, path: Path) -> Node | None:
        """Return the normalized value, or None if it counts as absent."""
        result: Node | None = node
        match shape, node:
            case AnyType(), _:
                pass
            case UnitType(), Scalar(value=None):
                what = f"invalid {shape.type.__name__.lower()}: null, leave it out or write a value"
                self.wrong.append(Problem(what, node.mark, path))
                result = None
            case _, Scalar(value=None):
                result = None
            case ObjectType(), Map():
                result = self._normalize_object(node, shape.type, path)
            case ListType(), List():
                items = [
                    self._normalize_item(n, shape.item, (*path, i))
                    for i, n in enumerate(node.items)
                ]
                result = List(tuple(items), node.mark)
            case MapType(), Map():
                values = [
                    (e, self._normalize_item(e.value, shape.value, (*path, e.key))) for e in node
                ]
                result = Map(tuple(Entry(e.key, value, e.mark) for e, value in values), node.mark)
            case ScalarType(zero=int()), Scalar(value=int() as number) if abs(number) > _MAX_INT:
                self.wrong.append(Problem("is too large for a whole number", node.mark, path))
                result = Scalar(0, node.mark)
            case _:
                pass
        return result

    def _normalize_item(self, node: Node, shape: FieldType, path: Path) -> Node:
        """Return an item of a list or map; null is the zero value of its type."""
        normalized = self.normalize(node, shape, path)
        if normalized is not None:
            return normalized
        match shape:
            case ScalarType():
                return Scalar(shape.zero, node.mark)
            case ObjectType() | MapType():
                return Map((), node.mark)
            case ListType():
                return List((), node.mark)
            case UnitType() | AnyType():
                return Scalar(None, node.mark)

    def _normalize_object(self, node: Map, spec: type[Spec], path: Path) -> Map:
        fields, spellings = fields_of(spec), spellings_of(spec)
        by_key: dict[str, Entry] = {}
        for entry in _sorted(node):
            key = entry.key if entry.key in fields else spellings.get(entry.key.lower())
            if key is None:
                what = unknown_word("unknown field", entry.key, fields)
                problems = self.tolerated_unknown if spec.tolerant else self.unknown
                problems.append(Problem(what, entry.mark, (*path, entry.key)))
            else:
                by_key[key] = entry
        entries: list[Entry] = []
        for key, entry in by_key.items():
            field = fields[key]
            value = self.normalize(entry.value, field.shape, (*path, key))
            if value is not None and not _means_default(value, field.shape, field.default):
                entries.append(Entry(key, value, entry.mark))
        return Map(tuple(entries), node.mark)


def entry_of(node: Node, key: str) -> Entry | None:
    """Return the entry of an object for a key, in upper or lower case."""
    if not isinstance(node, Map):
        return None
    matches = [entry for entry in _sorted(node) if entry.key.lower() == key.lower()]
    return matches[-1] if matches else None


def _sorted(node: Map) -> list[Entry]:
    """Return the entries in the order in which upstream reads them: the last spelling wins."""
    return sorted(node, key=lambda entry: entry.key)


def to_values(node: Node, shape: FieldType) -> Any:
    """Return the plain values that pydantic validates."""
    match shape, node:
        case ObjectType(), Map():
            fields = fields_of(shape.type)
            return {e.key: to_values(e.value, fields[e.key].shape) for e in node}
        case ListType(), List():
            items = [to_values(item, shape.item) for item in node.items]
            return tuple(items) if shape.is_tuple else items
        case MapType(), Map():
            return {e.key: to_values(e.value, shape.value) for e in node}
        case _:
            return to_plain(node)


def _means_default(node: Node, shape: FieldType, default: object) -> bool:
    """Report whether a value is the zero value of its type, which means the default."""
    if default is None or not isinstance(node, Scalar) or isinstance(node.value, bool):
        return False
    match shape, node.value:
        case ScalarType(zero=str()), value:
            return value == ""
        case ScalarType(zero=int() | float()), int() | float() as value:
            return value == 0
        case UnitType(), str() as text:
            with suppress(ValueError):
                return str(shape.type.parse(text)).rstrip("s%") == "0"
        case UnitType(), value:
            return value == 0
        case _:
            pass
    return False


def locate(node: Node, shape: FieldType, loc: Path) -> tuple[Path, Mark]:
    """Return the path and the position of a pydantic error location.

    A missing value has the position of its parent.
    """
    path: Path = ()
    for i, part in enumerate(loc):
        child = _child(node, shape, part)
        if child is None:
            if i < len(loc) - 1 or part == "[key]":
                return path, node.mark
            # Pydantic names a missing field by its attribute; files write its key.
            fields = fields_of(shape.type).items() if isinstance(shape, ObjectType) else ()
            key = next((key for key, field in fields if field.name == part), part)
            return (*path, key), node.mark
        node, shape = child
        path = (*path, part)
    return path, node.mark


def _child(node: Node, shape: FieldType, part: int | str) -> tuple[Node, FieldType] | None:
    child: FieldType = AnyType()
    match node, part:
        case Map(), str():
            entry = node.get(part)
            if entry is None:
                return None
            if isinstance(shape, ObjectType) and part in fields_of(shape.type):
                child = fields_of(shape.type)[part].shape
            elif isinstance(shape, MapType):
                child = shape.value
            return entry.value, child
        case List(), int() if part < len(node.items):
            return node.items[part], shape.item if isinstance(shape, ListType) else child
        case _:
            return None


SpecT = TypeVar("SpecT", bound=Spec)


class Level(Enum):
    """The severity of a mistake."""

    MISTAKE = auto()
    """The file cannot be used."""
    WARNING = auto()
    """The file is used; the value is ignored, or fails later."""
    UNPLANNABLE = auto()
    """The file is used, and a warning reported; a deployment cannot be planned with it."""
    IGNORED = auto()
    """The mistake is not reported."""


class Decoder:
    """Decodes the parts of one file and collects their mistakes and references."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._mistakes: dict[Level, list[Mistake]] = {level: [] for level in Level}
        self._references: list[LocatedReference] = []

    @property
    def references(self) -> tuple[LocatedReference, ...]:
        """Return the references of the decoded parts to entries of other files."""
        return tuple(self._references)

    @property
    def report(self) -> Report:
        """Return the mistakes and warnings so far."""
        of_level = self._mistakes
        return Report.of(
            of_level[Level.MISTAKE], of_level[Level.WARNING], of_level[Level.UNPLANNABLE]
        )

    def has_mistake(self, path: str) -> bool:
        """Report whether a value has a mistake already."""
        return any(mistake.path == path for mistake in self._mistakes[Level.MISTAKE])

    def raise_mistakes(self) -> None:
        """Raise ConfigMistake if the file has a mistake; warnings do not count."""
        if self._mistakes[Level.MISTAKE]:
            raise ConfigMistake(self.report)

    def add(self, what: str, *, at: Mark, path: Path, level: Level = Level.MISTAKE) -> None:
        """Add a mistake or a warning."""
        self._mistakes[level].append(self._mistake(what, at, path))

    def decode(
        self,
        node: Node,
        to: type[SpecT],
        *,
        path: Path = (),
        unknown: Level = Level.WARNING,
        wrong: Level = Level.MISTAKE,
    ) -> SpecT | None:
        """Return the value of a part, or None if it is invalid; null is an empty object.

        `unknown` is the severity of unknown keys, `wrong` that of invalid values.
        """
        shape, normalizer = ObjectType(to), Normalizer()
        normalized = normalizer.normalize(node, shape, path) or Map((), node.mark)
        tolerated_unknown = Level.WARNING if unknown is Level.MISTAKE else unknown
        for level, problems in (
            (unknown, normalizer.unknown),
            (tolerated_unknown, normalizer.tolerated_unknown),
            (wrong, normalizer.wrong),
        ):
            for problem in problems:
                self.add(problem.what, at=problem.mark, path=problem.path, level=level)
        try:
            value = to.model_validate(to_values(normalized, shape), by_alias=True, by_name=False)
        except ValidationError as e:
            for error in e.errors(include_url=False)[:_MAX_MISTAKES]:
                where, mark = locate(normalized, shape, error["loc"])
                self.add(explain(error), at=mark, path=(*path, *where), level=wrong)
            return None
        if normalizer.wrong:
            return None
        for where, part in _nested_specs(value, ()):
            for advice in part.advice():
                at, mark = locate(normalized, shape, (*where, *advice.at))
                level = Level.UNPLANNABLE if advice.unplannable else Level.WARNING
                self.add(advice.what, at=mark, path=(*path, *at), level=level)
            for reference in part.references():
                at, mark = locate(normalized, shape, (*where, *reference.at))
                location = self._mistake("", mark, (*path, *at))
                self._references.append(LocatedReference(location, reference))
        return value

    def _mistake(self, what: str, at: Mark, path: Path) -> Mistake:
        return Mistake(self.file, at.line, at.column, dotted(path), what)


def decode_plain(value: object, to: type[SpecT], *, what: str) -> SpecT:
    """Decode plain values, such as the options that a plugin receives as JSON.

    Mistakes name `what` in place of a file; unknown keys are ignored.
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


def _nested_specs(value: object, path: Path) -> list[tuple[Path, Spec]]:
    """Return a value and every spec inside it, each with its path."""
    match value:
        case Spec():
            inside = [
                nested
                for key, field in fields_of(type(value)).items()
                for nested in _nested_specs(getattr(value, field.name), (*path, key))
            ]
            return [(path, value), *inside]
        case tuple():
            items: tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return [nested for i, v in enumerate(items) for nested in _nested_specs(v, (*path, i))]
        case Mapping():
            table: Mapping[str, object] = value  # pyright: ignore[reportUnknownVariableType]
            return [nested for k, v in table.items() for nested in _nested_specs(v, (*path, k))]
        case _:
            return []
