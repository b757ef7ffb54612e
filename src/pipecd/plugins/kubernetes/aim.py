# SPDX-License-Identifier: Apache-2.0
"""Which clusters an application is deployed to, and what is particular to each."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.plugins.kubernetes.application import (
    Application,
    MulticlusterApplication,
    MulticlusterInput,
    MultiTarget,
)
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.options import Limited
from pipecd.plugins.kubernetes.route import Routes
from pipecd.sdk import DeployTarget, Spec


@dataclass(frozen=True)
class Aim:
    """One cluster and the application as it is there; `below` is where Kustomize builds it.

    A cluster `is_new` to a rollback when the commit before did not go there. With `routes` only
    some of the objects are there.
    """

    target: DeployTarget
    application: Application
    below: str = ""
    is_new: bool = False
    routes: Routes | None = None

    def takes(self, manifest: Manifest) -> bool:
        """Reports whether an object of the application goes to this cluster."""
        return self.routes is None or self.target.name in self.routes.of(manifest)


def aims(application: MulticlusterApplication, targets: Sequence[DeployTarget]) -> list[Aim]:
    """Returns the clusters that the application names, all of them when it names none."""
    differing = {entry.target.name: entry for entry in application.input.multi_targets}
    return [
        _aim(application, target, differing.get(target.name, MultiTarget()))
        for target in targets
        if not differing or target.name in differing
    ]


def limited(found: Sequence[Aim], options: Spec | None) -> list[Aim]:
    """Returns the clusters that a stage is limited to, all of them when it names none."""
    only = options.multi_targets if isinstance(options, Limited) else ()
    return [aim for aim in found if not only or aim.target.name in only]


def unknown_targets(
    application: MulticlusterApplication, targets: Sequence[DeployTarget]
) -> list[str]:
    """Returns the names in the application that are no deploy targets of it."""
    known = {target.name for target in targets}
    named = (entry.target.name for entry in application.input.multi_targets)
    return [name for name in named if name not in known]


def _aim(application: MulticlusterApplication, target: DeployTarget, entry: MultiTarget) -> Aim:
    given = entry.model_dump(include=set(MulticlusterInput.model_fields))
    differing = {name: value for name, value in given.items() if value}
    wanted = application.input.model_copy(update={**differing, "multi_targets": ()})
    there = application.model_copy(update={"input": wanted})
    return Aim(target, there, below=entry.kustomize_dir)
