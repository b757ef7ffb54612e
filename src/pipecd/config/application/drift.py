# SPDX-License-Identifier: Apache-2.0
"""Which differences between Git and what runs do not count."""

from typing import Self

from pydantic import model_validator

from pipecd.config.rule import refuse
from pipecd.config.spec import Spec


class DriftDetectionSpec(Spec):
    """Fields to ignore, each written `apiVersion:kind:namespace:name#fieldPath`."""

    ignore_fields: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _each_names_a_field(self) -> Self:
        what = 'must be in the form of "apiVersion:kind:namespace:name#fieldPath"'
        fields = enumerate(self.ignore_fields)
        refuse(self, *((text.count("#") != 1, ("ignoreFields", i), what) for i, text in fields))
        return self

    def ignored_by_resource(self) -> dict[str, tuple[str, ...]]:
        """Return the field paths to ignore by the key of their resource."""
        paths: dict[str, tuple[str, ...]] = {}
        for field in self.ignore_fields:
            resource, _, path = field.partition("#")
            paths[resource] = (*paths.get(resource, ()), path)
        return paths
