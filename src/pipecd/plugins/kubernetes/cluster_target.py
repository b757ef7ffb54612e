# SPDX-License-Identifier: Apache-2.0
"""Which clusters an application is deployed to, and what differs between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.plugins.kubernetes.config import (
    Application,
    MultiOptions,
    ResourceRoute,
    RouteMatch,
)
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.sdk import DeployTarget, Spec, UserMistake


@dataclass(frozen=True)
class ResourceRoutes:
    """The `resourceRoutes` of an application with their deploy targets by name.

    The first route that matches an object decides; all other objects go to `default_target`.
    """

    default_target: str
    routes: tuple[tuple[RouteMatch, frozenset[str]], ...] = ()

    @property
    def targets(self) -> frozenset[str]:
        """The names of all deploy targets that objects may go to."""
        return frozenset({self.default_target}).union(*(names for _, names in self.routes))

    def targets_of(self, manifest: Manifest) -> frozenset[str]:
        """Returns the names of the deploy targets of one object."""
        for match, names in self.routes:
            if match.kind in ("", manifest.kind) and match.name in ("", manifest.name):
                return names
        return frozenset({self.default_target})


def resolve_routes(
    default_target: str, routes: Sequence[ResourceRoute], deploy_targets: Sequence[DeployTarget]
) -> ResourceRoutes:
    """Resolves the providers of routes to deploy targets of the piped."""
    names = [target.name for target in deploy_targets]
    resolved: list[tuple[RouteMatch, frozenset[str]]] = []
    for route in routes:
        name, labels = route.provider.name, route.provider.labels.items()
        if name and name not in names:
            raise UserMistake(
                f"provider {name} specified in resourceRoutes was not found",
                hint=f"the deploy targets of the piped are {', '.join(names) or 'none'}",
            )
        matching = (
            frozenset({name})
            if name
            else frozenset(t.name for t in deploy_targets if labels and labels <= t.labels.items())
        )
        if not matching:
            listed = ", ".join(f"{key}: {value}" for key, value in labels)
            raise UserMistake(
                f"there is no provider that matches the specified labels ({listed})",
                hint="name a deploy target of the piped, or labels of one, in resourceRoutes",
            )
        resolved.append((route.match or RouteMatch(), matching))
    return ResourceRoutes(default_target, tuple(resolved))


@dataclass(frozen=True)
class ClusterTarget:
    """One cluster and the settings of the application that hold there.

    Kustomize builds `kustomize_dir` if it is set. `is_new` means that the running commit was not
    deployed to the cluster. With `routes` only the objects routed here belong to the cluster.
    """

    deploy_target: DeployTarget
    application: Application
    kustomize_dir: str = ""
    is_new: bool = False
    routes: ResourceRoutes | None = None

    @property
    def name(self) -> str:
        """The name of the deploy target."""
        return self.deploy_target.name

    def includes(self, manifest: Manifest) -> bool:
        """Reports whether an object of the application goes to this cluster."""
        return self.routes is None or self.name in self.routes.targets_of(manifest)


def select_targets(targets: Sequence[ClusterTarget], options: Spec | None) -> list[ClusterTarget]:
    """Returns the clusters in `multiTargets` of a stage, or all of them without any there."""
    selected = options.multi_targets if isinstance(options, MultiOptions) else ()
    return [target for target in targets if not selected or target.name in selected]
