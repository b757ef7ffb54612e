# SPDX-License-Identifier: Apache-2.0
"""Decodes a YAML tree into a configuration type; a report has every mistake with its line.

The `Normalizer` matches keys and applies defaults, pydantic validates the values, and its errors
are located in the file and explained.
"""

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
    """A scalar; `zero` is the value of an absent one."""

    zero: bool | int | float | str


@dataclass(frozen=True, slots=True)
class UnitType:
    """A duration, a percentage or a number of replicas, for which null is no value."""

    type: type[Duration | Percentage | Replicas]


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
    origin = get_origin(annotation)
    if origin is Annotated:
        return field_type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        options = [a for a in get_args(annotation) if a is not type(None)]
        return field_type(options[0]) if len(options) == 1 else AnyType()
    if origin is Literal:
        return ScalarType("")
    if isinstance(origin, type):
        return _generic_type(origin, get_args(annotation))
    if isinstance(annotation, type):
        return _plain_type(annotation)
    return AnyType()


def _generic_type(origin: type, arguments: tuple[Any, ...]) -> FieldType:
    if issubclass(origin, Mapping):
        return MapType(field_type(arguments[1]))
    if issubclass(origin, Sequence):
        return ListType(field_type(arguments[0]), is_tuple=issubclass(origin, tuple))
    return AnyType()


def _plain_type(annotation: type) -> FieldType:
    if issubclass(annotation, Spec):
        return ObjectType(annotation)
    if issubclass(annotation, _UNITS):
        return UnitType(annotation)
    if annotation in _SCALARS:
        return ScalarType(annotation())
    return AnyType()


_MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at a position of the file."""

    what: str
    mark: Mark
    path: Path


class Normalizer:
    """Normalizes a tree for a type: the keys of the type, no nulls and zeros with a default."""

    def __init__(self) -> None:
        self.unknown: list[Finding] = []
        self.tolerated_unknown: list[Finding] = []
        """Unknown keys that even a strict read only warns about."""
        self.wrong: list[Finding] = []

    def normalize(self, node: Node, shape: FieldType, path: Path) -> Node | None:
        """Return the normalized value, or None if it counts as absent."""
        is_null = isinstance(node, Scalar) and node.value is None
        if isinstance(shape, AnyType) or not is_null:
            return self._normalize_value(node, shape, path)
        if isinstance(shape, UnitType):
            what = f"invalid {shape.type.__name__.lower()}: null, leave it out or write a value"
            self.wrong.append(Finding(what, node.mark, path))
        return None

    def _normalize_value(self, node: Node, shape: FieldType, path: Path) -> Node:
        match shape, node:
            case ObjectType(), Map():
                return self._normalize_object(node, shape.type, path)
            case ListType(), List():
                items = [
                    self._normalize_item(n, shape.item, (*path, i))
                    for i, n in enumerate(node.items)
                ]
                return List(tuple(items), node.mark)
            case MapType(), Map():
                values = [
                    (e, self._normalize_item(e.value, shape.value, (*path, e.key))) for e in node
                ]
                return Map(tuple(Entry(e.key, value, e.mark) for e, value in values), node.mark)
            case ScalarType(zero=int()), Scalar(value=int() as number) if abs(number) > _MAX_INT:
                self.wrong.append(Finding("is too large for a whole number", node.mark, path))
                return Scalar(0, node.mark)
            case _:
                return node

    def _normalize_item(self, node: Node, shape: FieldType, path: Path) -> Node:
        """Return an item of a list or map; null is the zero value."""
        return self.normalize(node, shape, path) or _zero_node(shape, node.mark)

    def _normalize_object(self, node: Map, spec: type[Spec], path: Path) -> Map:
        fields, spellings = fields_of(spec), spellings_of(spec)
        found: dict[str, Entry] = {}
        for entry in _sorted(node):
            key = entry.key if entry.key in fields else spellings.get(entry.key.lower())
            if key is None:
                what = unknown_word("unknown field", entry.key, fields)
                findings = self.tolerated_unknown if spec.tolerant else self.unknown
                findings.append(Finding(what, entry.mark, (*path, entry.key)))
            else:
                found[key] = entry
        kept: list[Entry] = []
        for key, entry in found.items():
            field = fields[key]
            value = self.normalize(entry.value, field.shape, (*path, key))
            if value is not None and not _means_default(value, field.shape, field.default):
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
    """Report whether a value is the zero of its type, which means the default."""
    if default is None or not isinstance(node, Scalar) or isinstance(node.value, bool):
        return False
    match shape, node.value:
        case ScalarType(zero=str()), value:
            return value == ""
        case ScalarType(zero=int() | float()), int() | float() as value:
            return value == 0
        case UnitType(), str() as text:
            return _is_zero(text, shape)
        case UnitType(), value:
            return value == 0
        case _:
            return False


def _is_zero(text: str, shape: UnitType) -> bool:
    try:
        return str(shape.type.parse(text)).rstrip("s%") == "0"
    except ValueError:
        return False


def _zero_node(shape: FieldType, mark: Mark) -> Node:
    match shape:
        case ScalarType():
            return Scalar(shape.zero, mark)
        case ObjectType() | MapType():
            return Map((), mark)
        case ListType():
            return List((), mark)
        case UnitType() | AnyType():
            return Scalar(None, mark)


def locate(node: Node, shape: FieldType, loc: Path) -> tuple[Path, Mark]:
    """Return the path and the position of a pydantic error location.

    An absent value has the position of its parent.
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


def _key(shape: FieldType, part: int | str) -> int | str:
    """Return the key that files write; pydantic names an absent field by its attribute."""
    if not isinstance(shape, ObjectType):
        return part
    return next((key for key, f in fields_of(shape.type).items() if f.name == part), part)


def _child(node: Node, shape: FieldType, part: int | str) -> tuple[Node, FieldType] | None:
    match node, part:
        case Map(), str():
            entry = node.get(part)
            return (entry.value, _child_type(shape, part)) if entry else None
        case List(), int() if part < len(node.items):
            return node.items[part], shape.item if isinstance(shape, ListType) else AnyType()
        case _:
            return None


def _child_type(shape: FieldType, key: str) -> FieldType:
    match shape:
        case ObjectType():
            fields = fields_of(shape.type)
            return fields[key].shape if key in fields else AnyType()
        case MapType():
            return shape.value
        case _:
            return AnyType()


SpecT = TypeVar("SpecT", bound=Spec)


class Level(Enum):
    """The severity of a finding."""

    MISTAKE = auto()
    """The file cannot be used."""
    WARNING = auto()
    """The file is used; what is named is ignored or fails later."""
    IGNORED = auto()


class Decoder:
    """The findings of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._findings: dict[Level, list[Mistake]] = {level: [] for level in Level}
        self._mentions: list[Mention] = []

    @property
    def mentions(self) -> tuple[Mention, ...]:
        """Return where the decoded parts name what other files have."""
        return tuple(self._mentions)

    @property
    def report(self) -> Report:
        """Return everything found so far."""
        return Report.of(self._findings[Level.MISTAKE], self._findings[Level.WARNING])

    def has_mistake(self, path: str) -> bool:
        """Report whether a value has a mistake already."""
        return any(mistake.path == path for mistake in self._findings[Level.MISTAKE])

    def raise_mistakes(self) -> None:
        """Raise ConfigMistake if anything found keeps the file from being used."""
        if self._findings[Level.MISTAKE]:
            raise ConfigMistake(self.report)

    def tell(self, what: str, *, at: Mark, path: Path, level: Level = Level.MISTAKE) -> None:
        """Add a finding."""
        self._findings[level].append(self._mistake(what, at, path))

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

        `unknown` is the severity of unknown keys, `wrong` that of invalid values.
        """
        shape, normalizer = ObjectType(to), Normalizer()
        normalize = normalizer.normalize(node, shape, path) or Map((), node.mark)
        tolerated_unknown = Level.WARNING if unknown is Level.MISTAKE else unknown
        for level, findings in (
            (unknown, normalizer.unknown),
            (tolerated_unknown, normalizer.tolerated_unknown),
            (wrong, normalizer.wrong),
        ):
            for found in findings:
                self.tell(found.what, at=found.mark, path=found.path, level=level)
        try:
            value = to.model_validate(to_values(normalize, shape), by_alias=True, by_name=False)
        except ValidationError as e:
            for error in e.errors(include_url=False):
                where, mark = locate(normalize, shape, error["loc"])
                self.tell(explain(error), at=mark, path=(*path, *where), level=wrong)
            return None
        if normalizer.wrong:
            return None
        for where, part in _nested_specs(value, ()):
            for advice in part.advice():
                at, mark = locate(normalize, shape, (*where, *advice.at))
                self.tell(advice.what, at=mark, path=(*path, *at), level=Level.WARNING)
            for reference in part.references():
                at, mark = locate(normalize, shape, (*where, *reference.at))
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


def _nested_specs(value: object, path: Path) -> list[tuple[Path, Spec]]:
    """Return every part inside a value with its path."""
    match value:
        case Spec():
            inside = [
                found
                for key, field in fields_of(type(value)).items()
                for found in _nested_specs(getattr(value, field.name), (*path, key))
            ]
            return [(path, value), *inside]
        case tuple():
            items: tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return [found for i, v in enumerate(items) for found in _nested_specs(v, (*path, i))]
        case Mapping():
            table: Mapping[str, object] = value  # pyright: ignore[reportUnknownVariableType]
            return [found for k, v in table.items() for found in _nested_specs(v, (*path, k))]
        case _:
            return []
