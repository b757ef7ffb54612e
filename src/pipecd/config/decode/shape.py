# SPDX-License-Identifier: Apache-2.0
"""What a configuration type expects at each place, read from its annotations."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pipecd.config.duration import Duration
from pipecd.config.percentage import Percentage
from pipecd.config.replicas import Replicas
from pipecd.config.spec import Spec

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
