# SPDX-License-Identifier: Apache-2.0
"""Which kinds an API server serves, and at which paths."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.kubernetes.client import ApiError, KubernetesClient
from pipecd.plugins.kubernetes.manifest import ResourceKey
from pipecd.plugins.kubernetes.unstructured import list_at, text_at
from pipecd.sdk import UserMistake

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True)
class ApiResource:
    """A kind that the API server serves."""

    group: str
    version: str
    kind: str
    plural: str
    is_namespaced: bool
    verbs: frozenset[str]

    @property
    def api_version(self) -> str:
        """The API version as objects name it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "") -> str:
        """Returns the path of one object, or of all of them in a namespace or in the cluster."""
        prefix = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        return f"{prefix}{place}/{self.plural}{f'/{name}' if name else ''}"


class Discovery:
    """The kinds that an API server serves, cached until an unknown one is requested."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._resources: dict[tuple[str, str], ApiResource] = {}
        self._preferred: tuple[ApiResource, ...] = ()

    async def resource(self, key: ResourceKey) -> ApiResource:
        """Returns the kind of an object; an unknown kind refreshes the cache first."""
        requested = key.api_version, key.kind
        if requested not in self._resources:
            await self.refresh()
        if requested not in self._resources:
            raise UserMistake(
                f"the cluster does not know {key.kind} of {key.api_version}",
                hint="correct apiVersion and kind, or install the CustomResourceDefinition first",
            )
        return self._resources[requested]

    async def preferred(self) -> tuple[ApiResource, ...]:
        """Returns every kind once, in the version that the server prefers."""
        if not self._preferred:
            await self.refresh()
        return self._preferred

    async def refresh(self) -> None:
        """Reads the kinds that the API server serves now."""
        resources: list[list[ApiResource]] = []
        for prefix in ("/api", "/apis"):
            response = await self._client.get(prefix, accept=f"{_AGGREGATED},application/json")
            if text_at(response, "kind") == "APIGroupDiscoveryList":
                resources += _parse_aggregated(response)
            else:
                resources += await self._group_by_group(prefix, response)
        self._resources = {(r.api_version, r.kind): r for group in resources for r in group}
        self._preferred = tuple(_preferred_versions(resources))

    async def _group_by_group(self, prefix: str, response: Any) -> list[list[ApiResource]]:
        """Reads the kinds of an old API server group by group, without unavailable groups."""
        versions_of_groups = (
            [[version] for version in list_at(response, "versions")] if prefix == "/api" else []
        )
        for group in list_at(response, "groups"):
            preferred = text_at(group, "preferredVersion", "groupVersion")
            versions = [text_at(v, "groupVersion") for v in list_at(group, "versions")]
            versions_of_groups.append(sorted(versions, key=lambda version: version != preferred))
        groups: list[list[ApiResource]] = []
        for versions in versions_of_groups:
            resources: list[ApiResource] = []
            for version in versions:
                try:
                    listed = await self._client.get(f"{prefix}/{version}")
                except ApiError:
                    continue
                resources += _parse_resource_list(version, listed)
            groups.append(resources)
        return groups


def _parse_aggregated(response: Any) -> Iterator[list[ApiResource]]:
    for group in list_at(response, "items"):
        yield [
            ApiResource(
                group=text_at(group, "metadata", "name"),
                version=text_at(version, "version"),
                kind=text_at(resource, "responseKind", "kind"),
                plural=text_at(resource, "resource"),
                is_namespaced=text_at(resource, "scope") == "Namespaced",
                verbs=frozenset(list_at(resource, "verbs")),
            )
            for version in list_at(group, "versions")
            for resource in list_at(version, "resources")
        ]


def _parse_resource_list(api_version: str, response: Any) -> Iterator[ApiResource]:
    group, _, version = api_version.rpartition("/")
    for resource in list_at(response, "resources"):
        if "/" not in text_at(resource, "name"):
            yield ApiResource(
                group=group,
                version=version,
                kind=text_at(resource, "kind"),
                plural=text_at(resource, "name"),
                is_namespaced=bool(resource.get("namespaced")),
                verbs=frozenset(list_at(resource, "verbs")),
            )


def _preferred_versions(groups: Iterable[Iterable[ApiResource]]) -> Iterator[ApiResource]:
    """Yields the first version of every kind of a group, which is the preferred one."""
    for group in groups:
        seen: set[str] = set()
        for resource in group:
            if resource.kind not in seen:
                seen.add(resource.kind)
                yield resource
