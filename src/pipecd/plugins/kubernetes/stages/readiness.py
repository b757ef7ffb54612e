# SPDX-License-Identifier: Apache-2.0
"""Waits until workloads are ready, for stages that are told to."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipecd.plugins.kubernetes.cluster.apply import Cluster, Say
from pipecd.plugins.kubernetes.live.health import health
from pipecd.plugins.kubernetes.live.verdict import unknown
from pipecd.plugins.kubernetes.manifest.body import list_at, map_at, text_at
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import Health, PipecdError, UserMistake
from pipecd.sdk.config import Duration

NOT_WAITED_FOR = Duration(0)
_PAUSE = 0.5


async def until_ready(
    cluster: Cluster, manifests: Sequence[Manifest], within: Duration, say: Say
) -> None:
    """Returns when all workloads are ready; one that is not in time is told with its reason.

    Without a time nothing is waited for.
    """
    awaited = {m.key: _Awaited(cluster, m, say) for m in manifests if _is_workload(m)}
    if not within or not awaited:
        return
    say(f"Waiting until {len(awaited)} workloads are ready, at most {within}")
    with suppress(TimeoutError):
        async with asyncio.timeout(within), asyncio.TaskGroup() as tasks:
            for each in awaited.values():
                tasks.create_task(each.run())
    late = [each for each in awaited.values() if each.verdict.health is not Health.HEALTHY]
    if late:
        reasons = [
            f"{each.manifest.key} is not ready after {within}: {await each.why()}" for each in late
        ]
        raise UserMistake("\n".join(reasons))


def _is_workload(manifest: Manifest) -> bool:
    return manifest.is_builtin(
        "apps", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"
    ) or manifest.is_builtin("", "Pod", "ReplicationController")


class _Awaited:
    """One workload, followed until it is ready."""

    def __init__(self, cluster: Cluster, manifest: Manifest, say: Say) -> None:
        self.manifest, self.verdict = manifest, unknown("nothing is known of it yet")
        self._cluster, self._say = cluster, say
        self._pods: Mapping[str, Any] = {}

    async def run(self) -> None:
        """Follows the workload until it is ready."""
        while self.verdict.health is not Health.HEALTHY:
            try:
                await self._follow()
            except PipecdError as e:
                self.verdict = unknown(str(e))
                await asyncio.sleep(_PAUSE)

    async def _follow(self) -> None:
        path, _, name = (await self._cluster.path(self.manifest)).rpartition("/")
        selector = f"metadata.name={name}"
        async with self._cluster.client.watch(path, fieldSelector=selector) as events:
            async for event in events:
                self._take(map_at(event, "object"))
                if self.verdict.health is Health.HEALTHY:
                    return

    def _take(self, body: Mapping[str, Any]) -> None:
        verdict = health({**body, "apiVersion": self.manifest.key.api_version})
        if verdict != self.verdict:
            self._say(f"- {self.manifest.key}: {verdict.text or 'ready'}")
        self.verdict = verdict
        self._pods = map_at(body, "spec", "selector", "matchLabels")

    async def why(self) -> str:
        """Returns why the workload is not ready, with the words of a pod that tells."""
        path = f"/api/v1/namespaces/{self.manifest.key.namespace or self._cluster.namespace}/pods"
        labels = ",".join(f"{key}={value}" for key, value in self._pods.items())
        if not labels:
            return self.verdict.text
        try:
            answer = await self._cluster.client.get(path, labelSelector=labels)
        except PipecdError:
            return self.verdict.text
        bad = [pod for pod in list_at(answer, "items") if _reason(pod)][:1]
        told = [f"pod {text_at(pod, 'metadata', 'name')}: {_reason(pod)}" for pod in bad]
        return "; ".join([self.verdict.text, *told])


def _reason(pod: Any) -> str:
    """Returns why a pod is not ready, empty for one that is."""
    verdict = health({**pod, "apiVersion": "v1", "kind": "Pod"})
    if verdict.health is not Health.HEALTHY:
        return verdict.text
    for condition in list_at(pod, "status", "conditions"):
        if text_at(condition, "type") == "Ready" and text_at(condition, "status") == "False":
            return text_at(condition, "message") or text_at(condition, "reason")
    return ""
