# SPDX-License-Identifier: Apache-2.0
"""A cluster: the client of its API server, the kinds that it serves and the paths of objects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.kubernetes.client import (
    ApiError,
    KubernetesClient,
    RecordRequest,
    RecordResponse,
    open_client,
)
from pipecd.plugins.kubernetes.config import KubernetesTarget
from pipecd.plugins.kubernetes.kubeconfig import load_connection
from pipecd.plugins.kubernetes.manifest import DEFAULT_NAMESPACE, Manifest, ResourceKey
from pipecd.plugins.kubernetes.metrics import not_recorded
from pipecd.sdk import UserMistake
from pipecd.sdk.unstructured import list_at, text_at

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
        scope = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        return f"{prefix}{scope}/{self.plural}{f'/{name}' if name else ''}"


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
                f"the cluster does not serve {key.kind} of {key.api_version}",
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
        resources: list[ApiResource] = []
        for prefix in ("/api", "/apis"):
            response = await self._client.get(prefix, accept=f"{_AGGREGATED},application/json")
            if text_at(response, "kind") != "APIGroupDiscoveryList":
                resources += await self._list_group_by_group(prefix, response)
                continue
            resources += (
                ApiResource(
                    group=text_at(group, "metadata", "name"),
                    version=text_at(version, "version"),
                    kind=text_at(resource, "responseKind", "kind"),
                    plural=text_at(resource, "resource"),
                    is_namespaced=text_at(resource, "scope") == "Namespaced",
                    verbs=frozenset(list_at(resource, "verbs")),
                )
                for group in list_at(response, "items")
                for version in list_at(group, "versions")
                for resource in list_at(version, "resources")
            )
        self._resources = {(r.api_version, r.kind): r for r in resources}
        # The preferred version of a group is its first one.
        preferred: dict[tuple[str, str], ApiResource] = {}
        for resource in resources:
            preferred.setdefault((resource.group, resource.kind), resource)
        self._preferred = tuple(preferred.values())

    async def _list_group_by_group(self, prefix: str, response: Any) -> list[ApiResource]:
        """Reads the kinds of an old API server group by group, without unavailable groups."""
        api_versions: list[str] = [*list_at(response, "versions")] if prefix == "/api" else []
        for group in list_at(response, "groups"):
            preferred = text_at(group, "preferredVersion", "groupVersion")
            versions = [text_at(v, "groupVersion") for v in list_at(group, "versions")]
            api_versions += sorted(versions, key=lambda version: version != preferred)
        resources: list[ApiResource] = []
        for api_version in api_versions:
            try:
                listed = await self._client.get(f"{prefix}/{api_version}")
            except ApiError:
                continue
            group, _, version = api_version.rpartition("/")
            resources += (
                ApiResource(
                    group=group,
                    version=version,
                    kind=text_at(resource, "kind"),
                    plural=text_at(resource, "name"),
                    is_namespaced=bool(resource.get("namespaced")),
                    verbs=frozenset(list_at(resource, "verbs")),
                )
                for resource in list_at(listed, "resources")
                if "/" not in text_at(resource, "name")
            )
        return resources


@dataclass(frozen=True)
class Cluster:
    """An API server, its kinds, and the namespace of objects that name none."""

    client: KubernetesClient
    discovery: Discovery
    namespace: str = DEFAULT_NAMESPACE

    async def path(self, manifest: Manifest) -> str:
        """Returns the API path of an object."""
        key = manifest.key
        resource = await self.discovery.resource(key)
        return resource.path(key.namespace or self.namespace, key.name)


@asynccontextmanager
async def open_cluster(
    settings: KubernetesTarget,
    *,
    namespace: str = "",
    record_response: RecordResponse = not_recorded,
    record_request: RecordRequest = not_recorded,
) -> AsyncIterator[Cluster]:
    """Connects to the cluster of a deploy target; the default namespace is the kubeconfig's."""
    connection = load_connection(settings.master_url, settings.kube_config_path)
    async with open_client(
        connection, record_response=record_response, record_request=record_request
    ) as client:
        namespace = namespace or connection.namespace or DEFAULT_NAMESPACE
        yield Cluster(client, Discovery(client), namespace)
