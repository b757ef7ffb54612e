# SPDX-License-Identifier: Apache-2.0
"""Waits until the objects that a stage applied are ready, for stages with `readyWithin`."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipecd.plugins.kubernetes.apply import LogLine
from pipecd.plugins.kubernetes.client import ApiError
from pipecd.plugins.kubernetes.cluster import Cluster
from pipecd.plugins.kubernetes.health import (
    HEALTHY,
    HealthStatus,
    health,
    health_from_conditions,
    is_custom_resource,
    progressing,
    unhealthy,
    unknown,
)
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.sdk import Health, PipecdError, UserMistake
from pipecd.sdk.config import Duration
from pipecd.sdk.unstructured import at, condition_of, list_at, map_at, text_at

NO_WAIT = Duration(0)
_RETRY_DELAY = 0.5
# How long the controller of a custom resource has to write its first condition; many never do.
_FIRST_CONDITION_TIMEOUT = 2.0


def has_readiness(manifest: Manifest) -> bool:
    """Reports whether an object may become ready later than it is applied."""
    return (
        manifest.is_builtin("apps", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
        or manifest.is_builtin("", "Pod", "ReplicationController")
        or manifest.is_builtin("batch", "Job")
        or is_custom_resource(manifest.key)
    )


def readiness(body: Mapping[str, Any]) -> HealthStatus | None:
    """Returns whether an object is ready; None if it has no condition that says so yet."""
    manifest = Manifest(body)
    if is_custom_resource(manifest.key) and not at(body, "metadata", "deletionTimestamp"):
        return health_from_conditions(body)
    status = health(body)
    if status.status is not Health.HEALTHY:
        return status
    if manifest.is_builtin("batch", "Job"):
        is_complete = text_at(condition_of(body, "Complete"), "status") == "True"
        # A suspended Job is not waited for.
        if not is_complete and not at(body, "spec", "suspend"):
            desired = at(body, "spec", "completions") or 1
            succeeded = at(body, "status", "succeeded") or 0
            return progressing(f"{succeeded} of {desired} pods are done")
    return status


class _Failed(Exception):
    """An object failed and will never be ready."""


async def wait_until_ready(
    cluster: Cluster, manifests: Sequence[Manifest], within: Duration, log: LogLine
) -> None:
    """Returns when all objects are ready; fails with the reasons of those that are not in time.

    An object that failed ends the wait at once. With a zero duration it does not wait.
    """
    awaited = [_AwaitedObject(cluster, m, log) for m in manifests if has_readiness(m)]
    if not within or not awaited:
        return
    what = "1 object is" if len(awaited) == 1 else f"{len(awaited)} objects are"
    log(f"Waiting until {what} ready, at most {within}")
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(within), asyncio.TaskGroup() as tasks:
                for each in awaited:
                    tasks.create_task(each.run())
    except* _Failed:
        # The statuses below say which object failed.
        pass
    failed = [
        f"{each.manifest.key} failed: {await each.reason()}" for each in awaited if each.has_failed
    ]
    if failed:
        raise UserMistake("\n".join(failed))
    late = [
        f"{each.manifest.key} is not ready after {within}: {await each.reason()}"
        for each in awaited
        if not each.is_ready
    ]
    if late:
        raise UserMistake("\n".join(late))


class _AwaitedObject:
    """One object, watched until it is ready or has failed."""

    def __init__(self, cluster: Cluster, manifest: Manifest, log: LogLine) -> None:
        self.manifest, self.status = manifest, unknown("its status has not been received yet")
        self._cluster, self._log = cluster, log
        self._pod_labels: Mapping[str, Any] = {}

    @property
    def is_ready(self) -> bool:
        """Whether it is ready."""
        return self.status.status is Health.HEALTHY

    @property
    def has_failed(self) -> bool:
        """Whether it will never be ready."""
        return self.status.is_terminal and not self.is_ready

    async def run(self) -> None:
        """Watches the object until it is ready; raises if it has failed."""
        while not self.is_ready:
            try:
                await self._watch()
            except PipecdError as e:
                self.status = unknown(str(e))
                await asyncio.sleep(_RETRY_DELAY)
            if self.has_failed:
                raise _Failed

    async def _watch(self) -> None:
        path = await self._cluster.path(self.manifest)
        if at(self.manifest.body, "spec", "ttlSecondsAfterFinished") is not None:
            # The Job may have finished and be deleted already.
            try:
                await self._cluster.client.get(path)
            except ApiError as e:
                if not e.is_not_found:
                    raise
                self._set_status(HEALTHY)
                return
        collection, _, name = path.rpartition("/")
        selector = f"metadata.name={name}"
        try:
            async with (
                asyncio.timeout(None) as condition_timeout,
                self._cluster.client.watch(collection, fieldSelector=selector) as events,
            ):
                async for event in events:
                    if text_at(event, "type") == "DELETED":
                        self._set_status(unhealthy("it was deleted meanwhile"))
                    else:
                        self._update(map_at(event, "object"), condition_timeout)
                    if self.is_ready or self.has_failed:
                        return
        except TimeoutError:
            # A custom resource whose controller writes no conditions counts as ready.
            self._set_status(HEALTHY)

    def _update(self, body: Mapping[str, Any], condition_timeout: asyncio.Timeout) -> None:
        self._pod_labels = map_at(body, "spec", "selector", "matchLabels")
        status = readiness({**body, "apiVersion": self.manifest.key.api_version})
        if status is not None:
            condition_timeout.reschedule(None)
            self._set_status(status)
        elif condition_timeout.when() is None:
            now = asyncio.get_running_loop().time()
            condition_timeout.reschedule(now + _FIRST_CONDITION_TIMEOUT)

    def _set_status(self, status: HealthStatus) -> None:
        if status != self.status:
            self._log(f"- {self.manifest.key}: {status.message or 'ready'}")
        self.status = status

    async def reason(self) -> str:
        """Returns why the object is not ready, with the reason of its first unready pod."""
        path = f"/api/v1/namespaces/{self.manifest.key.namespace or self._cluster.namespace}/pods"
        selector = ",".join(f"{key}={value}" for key, value in self._pod_labels.items())
        if not selector:
            return self.status.message
        try:
            pods = await self._cluster.client.get(path, labelSelector=selector)
        except PipecdError:
            return self.status.message
        for pod in list_at(pods, "items"):
            status = readiness({**pod, "apiVersion": "v1", "kind": "Pod"})
            if status and status.status is not Health.HEALTHY:
                name = text_at(pod, "metadata", "name")
                return f"{self.status.message}; pod {name}: {status.message}"
        return self.status.message
