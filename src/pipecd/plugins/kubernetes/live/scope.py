# SPDX-License-Identifier: Apache-2.0
"""Which kinds are worth watching: those that applications use, and what these own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipecd.plugins.kubernetes.target import AppStateInformer, ResourceMatcher

_APPS, _BATCH = "apps/v1", "batch/v1"


@dataclass(frozen=True, order=True)
class Scope:
    """A kind; `is_owned` means all objects of it, whoever made them, not only managed ones."""

    api_version: str
    kind: str
    is_owned: bool = False

    @property
    def group(self) -> str:
        """The API group, empty for the core one."""
        return self.api_version.rpartition("/")[0]


_POD = Scope("v1", "Pod", is_owned=True)
_REPLICA_SET = Scope(_APPS, "ReplicaSet", is_owned=True)
_JOB = Scope(_BATCH, "Job", is_owned=True)
_OWNED: dict[tuple[str, str], tuple[Scope, ...]] = {
    ("apps", "Deployment"): (_REPLICA_SET, _POD),
    ("apps", "ReplicaSet"): (_POD,),
    ("apps", "StatefulSet"): (_POD,),
    ("apps", "DaemonSet"): (_POD,),
    ("", "ReplicationController"): (_POD,),
    ("batch", "Job"): (_POD,),
    ("batch", "CronJob"): (_JOB, _POD),
    ("", "Service"): (Scope("discovery.k8s.io/v1", "EndpointSlice", is_owned=True),),
}
# What a controller that nobody knows makes of its objects.
_CUSTOM = (
    _REPLICA_SET,
    _JOB,
    _POD,
    Scope(_APPS, "Deployment", is_owned=True),
    Scope(_APPS, "StatefulSet", is_owned=True),
    Scope("v1", "Service", is_owned=True),
)


def scopes(used: Iterable[Scope], informer: AppStateInformer) -> frozenset[Scope]:
    """Returns what to watch for the kinds in use; what the deploy target excludes is left out."""
    managed = [scope for scope in used if not is_excluded(scope, informer)]
    owned = (below for scope in managed for below in _below(scope))
    wanted = (scope for scope in owned if not is_excluded(scope, informer))
    return frozenset((*managed, *wanted, *_included(informer)))


def is_excluded(scope: Scope, informer: AppStateInformer) -> bool:
    """Reports whether the deploy target wants a kind not to be watched."""
    return any(_matches(matcher, scope) for matcher in informer.exclude_resources)


def _matches(matcher: ResourceMatcher, scope: Scope) -> bool:
    return matcher.api_version == scope.api_version and matcher.kind in ("", scope.kind)


def _below(scope: Scope) -> tuple[Scope, ...]:
    if (scope.group, scope.kind) in _OWNED:
        return _OWNED[scope.group, scope.kind]
    is_custom = "." in scope.group and not scope.group.endswith(".k8s.io")
    return _CUSTOM if is_custom else ()


def _included(informer: AppStateInformer) -> Iterator[Scope]:
    """Yields kinds that somebody's controller makes and the deploy target names."""
    for matcher in informer.include_resources:
        scope = Scope(matcher.api_version, matcher.kind, is_owned=True)
        if matcher.kind and not is_excluded(scope, informer):
            yield scope
