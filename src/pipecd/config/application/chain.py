# SPDX-License-Identifier: Apache-2.0
"""The applications that deploy after this one."""

from collections.abc import Iterator, Mapping
from typing import Self

from pydantic import Field, model_validator

from pipecd.config.rule import refuse
from pipecd.config.spec import Advice, Spec
from pipecd.model.application import ApplicationKind


class ChainApplicationSpec(Spec):
    """Picks every application of the project that agrees with what is set."""

    name: str = ""
    kind: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict[str, str])

    @model_validator(mode="after")
    def _picks_something(self) -> Self:
        what = 'at least one of "name", "kind" or "labels" must be set to find applications'
        refuse(self, (not (self.name or self.kind or self.labels), "", what))
        return self

    def advice(self) -> Iterator[Advice]:
        """Yield a kind that the control plane will refuse."""
        if self.kind and self.kind not in ApplicationKind.__members__:
            kinds = ", ".join(ApplicationKind.__members__)
            yield Advice(("kind",), f"no application has this kind, write one of {kinds}")


class ChainSpec(Spec):
    """Blocks of applications, one after the other."""

    applications: tuple[ChainApplicationSpec, ...] = ()

    @model_validator(mode="after")
    def _has_links(self) -> Self:
        what = "must name at least one application that deploys after this one"
        refuse(self, (not self.applications, "applications", what))
        return self


class PostSyncSpec(Spec):
    """What happens after a deployment succeeded."""

    chain: ChainSpec | None = None
