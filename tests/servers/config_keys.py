# SPDX-License-Identifier: Apache-2.0
"""The keys of configuration files, for tests of their documentation."""

from collections.abc import Iterator

from pipecd.config.decode import FieldType, ListType, MapType, ObjectType, fields_of
from pipecd.config.spec import Spec


def keys_of(spec: type[Spec]) -> Iterator[str]:
    """Every key that a file of this type may have, at any depth."""
    for key, field in fields_of(spec).items():
        yield key
        yield from _keys_in(field.shape)


def _keys_in(shape: FieldType) -> Iterator[str]:
    match shape:
        case ObjectType():
            yield from keys_of(shape.type)
        case ListType():
            yield from _keys_in(shape.item)
        case MapType():
            yield from _keys_in(shape.value)
        case _:
            return
