# SPDX-License-Identifier: Apache-2.0
"""Which of an application's objects go to other deploy targets than the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.plugins.kubernetes.application import ResourceRoute, RouteMatch, RouteProvider
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import DeployTarget, UserMistake


@dataclass(frozen=True)
class Routes:
    """Where objects go: the first route that matches decides, the rest go to their own target."""

    own: str
    others: tuple[tuple[RouteMatch, frozenset[str]], ...] = ()

    @property
    def targets(self) -> frozenset[str]:
        """The names of all deploy targets that objects may go to."""
        return frozenset({self.own}).union(*(names for _, names in self.others))

    def of(self, manifest: Manifest) -> frozenset[str]:
        """Returns the deploy targets of an object."""
        for match, names in self.others:
            if match.kind in ("", manifest.kind) and match.name in ("", manifest.name):
                return names
        return frozenset({self.own})


def routes(own: str, declared: Sequence[ResourceRoute], known: Sequence[DeployTarget]) -> Routes:
    """Reads the routes of an application among the deploy targets of the piped."""
    return Routes(
        own,
        tuple((route.match or RouteMatch(), _named(route.provider, known)) for route in declared),
    )


def _named(provider: RouteProvider, known: Sequence[DeployTarget]) -> frozenset[str]:
    if provider.name:
        if provider.name not in {target.name for target in known}:
            raise UserMistake(
                f"provider {provider.name} specified in resourceRoutes was not found",
                hint=f"the piped knows {', '.join(target.name for target in known) or 'none'}",
            )
        return frozenset({provider.name})
    wanted = provider.labels.items()
    found = frozenset(target.name for target in known if wanted <= target.labels.items())
    if not wanted or not found:
        told = ", ".join(f"{key}: {value}" for key, value in wanted)
        raise UserMistake(
            f"there is no provider that matches the specified labels ({told})",
            hint="name a deploy target of the piped, or labels of one, in resourceRoutes",
        )
    return found
