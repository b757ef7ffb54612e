# SPDX-License-Identifier: Apache-2.0
"""Which kinds an API server serves, and at which paths."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.kubernetes.cluster.client import Client
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.manifest.body import list_at, text_at
from pipecd.plugins.kubernetes.manifest.key import Key
from pipecd.sdk import UserMistake

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True)
class Resource:
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
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        return f"{root}{place}/{self.plural}{f'/{name}' if name else ''}"


class Kinds:
    """The kinds of a cluster, looked up once and again when one is not known."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str], Resource] = {}
        self._preferred: tuple[Resource, ...] = ()

    async def of(self, key: Key) -> Resource:
        """Returns the kind of an object; one that appeared meanwhile is found."""
        wanted = key.api_version, key.kind
        if wanted not in self._known:
            await self.refresh()
        if wanted not in self._known:
            raise UserMistake(
                f"the cluster does not know {key.kind} of {key.api_version}",
                hint="correct apiVersion and kind, or install the CustomResourceDefinition first",
            )
        return self._known[wanted]

    async def preferred(self) -> tuple[Resource, ...]:
        """Returns every kind once, in the version that the server prefers."""
        if not self._preferred:
            await self.refresh()
        return self._preferred

    async def refresh(self) -> None:
        """Asks the API server what it serves now."""
        resources: list[list[Resource]] = []
        for root in ("/api", "/apis"):
            answer = await self._client.get(root, accept=f"{_AGGREGATED},application/json")
            if text_at(answer, "kind") == "APIGroupDiscoveryList":
                resources += _aggregated(answer)
            else:
                resources += await self._one_by_one(root, answer)
        self._known = {(r.api_version, r.kind): r for group in resources for r in group}
        self._preferred = tuple(_first_of_each(resources))

    async def _one_by_one(self, root: str, answer: Any) -> list[list[Resource]]:
        """Asks an old API server group by group; a group whose server is away is left out."""
        names = [[version] for version in list_at(answer, "versions")] if root == "/api" else []
        for group in list_at(answer, "groups"):
            preferred = text_at(group, "preferredVersion", "groupVersion")
            versions = [text_at(v, "groupVersion") for v in list_at(group, "versions")]
            names.append(sorted(versions, key=lambda version: version != preferred))
        found: list[list[Resource]] = []
        for versions in names:
            group_found: list[Resource] = []
            for version in versions:
                try:
                    listed = await self._client.get(f"{root}/{version}")
                except Refusal:
                    continue
                group_found += _listed(version, listed)
            found.append(group_found)
        return found


def _aggregated(answer: Any) -> Iterator[list[Resource]]:
    for group in list_at(answer, "items"):
        yield [
            Resource(
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


def _listed(api_version: str, answer: Any) -> Iterator[Resource]:
    group, _, version = api_version.rpartition("/")
    for resource in list_at(answer, "resources"):
        if "/" not in text_at(resource, "name"):
            yield Resource(
                group=group,
                version=version,
                kind=text_at(resource, "kind"),
                plural=text_at(resource, "name"),
                is_namespaced=bool(resource.get("namespaced")),
                verbs=frozenset(list_at(resource, "verbs")),
            )


def _first_of_each(groups: Iterable[Iterable[Resource]]) -> Iterator[Resource]:
    """Yields the first version of every kind of a group: servers list the preferred one first."""
    for group in groups:
        seen: set[str] = set()
        for resource in group:
            if resource.kind not in seen:
                seen.add(resource.kind)
                yield resource
