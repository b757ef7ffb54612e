# SPDX-License-Identifier: Apache-2.0
"""Waits until what a stage applied is ready, for stages that are told to."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipecd.plugins.kubernetes.cluster.apply import Cluster, Say
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.live.verdict import FINE, Verdict, unhealthy, unknown
from pipecd.plugins.kubernetes.manifest.body import at, list_at, map_at, text_at
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.stages.readiness import is_awaited, readiness
from pipecd.sdk import Health, PipecdError, UserMistake
from pipecd.sdk.config import Duration

NOT_WAITED_FOR = Duration(0)
_PAUSE = 0.5
# So long the controller of a custom resource has to write its first condition; many never do.
_FIRST_WORD = 2.0
_NOTHING = unknown("nothing is known of it yet")


class _Failed(Exception):
    """Something will never be ready."""


async def until_ready(
    cluster: Cluster, manifests: Sequence[Manifest], within: Duration, say: Say
) -> None:
    """Returns when everything is ready; what is not in time, or failed, is told with its reason.

    Without a time nothing is waited for.
    """
    awaited = [_Awaited(cluster, manifest, say) for manifest in manifests if is_awaited(manifest)]
    if not within or not awaited:
        return
    say(f"Waiting until {len(awaited)} objects are ready, at most {within}")
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(within), asyncio.TaskGroup() as tasks:
                for each in awaited:
                    tasks.create_task(each.run())
    except* _Failed:
        # The verdicts tell which; the others were still on their way.
        pass
    lost = [f"{each.manifest.key} failed: {await each.why()}" for each in awaited if each.is_lost]
    late = [each for each in awaited if not each.is_ready and not lost]
    reasons = [
        f"{each.manifest.key} is not ready after {within}: {await each.why()}" for each in late
    ]
    if lost or reasons:
        raise UserMistake("\n".join(lost or reasons))


class _Awaited:
    """One object, followed until it is ready or will never be."""

    def __init__(self, cluster: Cluster, manifest: Manifest, say: Say) -> None:
        self.manifest, self.verdict = manifest, _NOTHING
        self._cluster, self._say = cluster, say
        self._pods: Mapping[str, Any] = {}

    @property
    def is_ready(self) -> bool:
        """Whether it is ready."""
        return self.verdict.health is Health.HEALTHY

    @property
    def is_lost(self) -> bool:
        """Whether it will never be ready."""
        return self.verdict.is_final and not self.is_ready

    async def run(self) -> None:
        """Follows the object until it is ready; one that will never be is an error."""
        while not self.is_ready:
            try:
                await self._follow()
            except PipecdError as e:
                self.verdict = unknown(str(e))
                await asyncio.sleep(_PAUSE)
            if self.is_lost:
                raise _Failed

    async def _follow(self) -> None:
        place = await self._cluster.path(self.manifest)
        if await self._is_swept(place):
            self._judge(FINE)
            return
        path, _, name = place.rpartition("/")
        selector = f"metadata.name={name}"
        try:
            async with (
                asyncio.timeout(None) as patience,
                self._cluster.client.watch(path, fieldSelector=selector) as events,
            ):
                async for event in events:
                    if text_at(event, "type") == "DELETED":
                        self._judge(unhealthy("it was deleted meanwhile"))
                    else:
                        self._take(map_at(event, "object"), patience)
                    if self.is_ready or self.is_lost:
                        return
        except TimeoutError:
            self._judge(FINE)

    async def _is_swept(self, place: str) -> bool:
        """Reports whether a Job is gone that is to be taken away once it is done."""
        if at(self.manifest.body, "spec", "ttlSecondsAfterFinished") is None:
            return False
        try:
            await self._cluster.client.get(place)
        except Refusal as e:
            if not e.is_missing:
                raise
            return True
        return False

    def _take(self, body: Mapping[str, Any], patience: asyncio.Timeout) -> None:
        self._pods = map_at(body, "spec", "selector", "matchLabels")
        verdict = readiness({**body, "apiVersion": self.manifest.key.api_version})
        if verdict is not None:
            patience.reschedule(None)
            self._judge(verdict)
        elif patience.when() is None:
            patience.reschedule(asyncio.get_running_loop().time() + _FIRST_WORD)

    def _judge(self, verdict: Verdict) -> None:
        if verdict != self.verdict:
            self._say(f"- {self.manifest.key}: {verdict.text or 'ready'}")
        self.verdict = verdict

    async def why(self) -> str:
        """Returns why the object is not ready, with the words of a pod that tells."""
        path = f"/api/v1/namespaces/{self.manifest.key.namespace or self._cluster.namespace}/pods"
        labels = ",".join(f"{key}={value}" for key, value in self._pods.items())
        if not labels:
            return self.verdict.text
        try:
            answer = await self._cluster.client.get(path, labelSelector=labels)
        except PipecdError:
            return self.verdict.text
        for pod in list_at(answer, "items"):
            verdict = readiness({**pod, "apiVersion": "v1", "kind": "Pod"})
            if verdict and verdict.health is not Health.HEALTHY:
                told = f"pod {text_at(pod, 'metadata', 'name')}: {verdict.text}"
                return f"{self.verdict.text}; {told}"
        return self.verdict.text
