# SPDX-License-Identifier: Apache-2.0
"""The stages of a deployment."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pipecd.config.duration import Duration
from pipecd.config.spec import Advice, Spec

STAGE_TIMEOUT = Duration(6 * 3600)


class SkipOn(Spec):
    """When a stage is passed over; either condition suffices, none means never."""

    commit_message_prefixes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


class StageSpec(Spec):
    """One stage: what a plugin does, for how long at most, and when it is skipped.

    `with_` is handed to the plugin as it is; an explicit null stays null.
    """

    tolerant: ClassVar[bool] = True

    id: str = ""
    name: str = ""
    desc: str = ""
    timeout: Duration = STAGE_TIMEOUT
    skip_on: SkipOn = SkipOn()
    with_: Annotated[Any, Field(alias="with", default_factory=dict[str, Any])]

    def advice(self) -> Iterator[Advice]:
        """Yield what is doubtful about a stage of any plugin."""
        if not self.name:
            yield Advice(("name",), "must be set, no plugin has a stage without a name")
        if self.timeout < 0:
            yield Advice(("timeout",), "is negative, the stage ends before it begins")


class PipelineSpec(Spec):
    """The stages in their order; none means quick sync."""

    stages: tuple[StageSpec, ...] = ()
