# SPDX-License-Identifier: Apache-2.0
"""The base of every configuration type."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Spec(BaseModel):
    """A frozen part of a configuration file.

    Attributes are the snake_case of the camelCase keys. Whether unknown keys are refused is a
    property of the file that is read (`pipecd.config.decode`), not of the type.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        arbitrary_types_allowed=True,
    )
