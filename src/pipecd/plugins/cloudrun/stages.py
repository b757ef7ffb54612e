# SPDX-License-Identifier: Apache-2.0
"""The stages of the plugin: sync, promote and rollback.

A stage reads the service, sends what it should be, and waits until Cloud Run has carried it out.
What it sends follows from the commits alone, so a stage that was interrupted is simply repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from pipecd.plugins.cloudrun.client import CloudRunClient, RevisionExists, ServiceChanged
from pipecd.plugins.cloudrun.conditions import (
    Readiness,
    revision_readiness,
    route_readiness,
    service_readiness,
)
from pipecd.plugins.cloudrun.config import CloudRunPromoteOptions
from pipecd.plugins.cloudrun.manifest import (
    SERVICE_LABEL,
    ServiceManifest,
    read_manifest,
    with_traffic,
)
from pipecd.sdk import (
    DISPLAY_KEY,
    Duration,
    Source,
    StageContext,
    StageResult,
    Unavailable,
    UserMistake,
)
from pipecd.sdk.ownership import COMMIT_TAG, ownership_tags
from pipecd.sdk.polling import Polling
from pipecd.sdk.unstructured import Body, at, list_at, text_at, with_entries, with_value

# How often a service that others change at the same time is read again.
_CONFLICTS = 5
_PERCENTAGE_KEY = "promote-percentage"


@dataclass(frozen=True)
class StageRun:
    """One execution of a stage."""

    stage: StageContext
    client: CloudRunClient
    polling: Polling

    async def sync(self) -> StageResult:
        """CLOUDRUN_SYNC: deploys a revision and gives all traffic to it."""
        manifest = await self._manifest(self.stage.target)
        revision = manifest.revision(self.stage.target.commit)
        traffic = {revision: 100}
        await self._release(manifest, revision, traffic, self.stage.target.commit)
        await self._display(traffic)
        return StageResult.succeeded(f"Revision {revision} gets all traffic")

    async def promote(self) -> StageResult:
        """CLOUDRUN_PROMOTE: gives a share of the traffic to the new revision."""
        percent = int(self.stage.options(CloudRunPromoteOptions).percent)
        await self.stage.metadata.put({_PERCENTAGE_KEY: str(percent)})
        manifest = await self._manifest(self.stage.target)
        revision = manifest.revision(self.stage.target.commit)
        if percent == 100:
            traffic = {revision: 100}
        elif (live := await self.client.service(manifest.name)) is None:
            self._log("The service does not exist yet: its first revision gets all traffic")
            traffic = {revision: 100}
        else:
            running = await self._running_revision(live, new=revision)
            traffic = {revision: percent, running: 100 - percent}
        await self._release_or_route(manifest, revision, traffic, self.stage.target.commit)
        await self._display(traffic)
        return StageResult.succeeded(
            f"Revision {revision} gets {traffic[revision]}% of the traffic"
        )

    async def rollback(self) -> StageResult:
        """CLOUDRUN_ROLLBACK: gives all traffic to the revision of the running commit."""
        if self.stage.running is None:
            return StageResult.failed(
                "There is no commit to roll back to: this is the first deployment; "
                "correct the service by a new commit"
            )
        manifest = await self._manifest(self.stage.running)
        live = await self.client.service(manifest.name)
        revision = manifest.revision(self.stage.running.commit)
        if live is not None and await self.client.revision(revision) is None:
            revision = await self._revision_by_commit(live) or revision
        traffic = {revision: 100}
        await self._release_or_route(manifest, revision, traffic, self.stage.running.commit)
        await self._display(traffic)
        return StageResult.succeeded(f"Revision {revision} gets all traffic")

    async def _manifest(self, source: Source) -> ServiceManifest:
        return await asyncio.to_thread(read_manifest, source, self.stage.plugin.name)

    async def _running_revision(self, live: Body, *, new: str) -> str:
        """Returns the revision that shares the traffic with the new one."""
        if self.stage.running is not None:
            manifest = await self._manifest(self.stage.running)
            expected = manifest.revision(self.stage.running.commit)
            if expected != new and await self.client.revision(expected) is not None:
                return expected
            if (found := await self._revision_by_commit(live)) and found != new:
                return found
        serving = {
            text_at(target, "revisionName"): at(target, "percent") or 0
            for target in list_at(live, "status", "traffic")
            if text_at(target, "revisionName") not in ("", new)
        }
        if not serving:
            raise UserMistake(
                "no other revision of the service serves, so the traffic cannot be shared",
                hint="deploy with a quick sync, which gives all traffic to the new revision",
            )
        most = max(serving, key=lambda name: serving[name])
        self._log(f"The running revision is taken from the traffic of the service: {most}")
        return most

    async def _revision_by_commit(self, live: Body) -> str | None:
        """Returns the revision of the running commit by its label, whatever its name."""
        if self.stage.running is None:
            return None
        name, commit = text_at(live, "metadata", "name"), self.stage.running.commit
        found = await self.client.revisions(f"{SERVICE_LABEL}={name},{COMMIT_TAG}={commit}")
        return text_at(found[0], "metadata", "name") if found else None

    def _labels(self, commit: str) -> dict[str, str]:
        deployment = self.stage.deployment
        return ownership_tags(
            piped_id=deployment.piped_id,
            application_id=deployment.application_id,
            commit=commit,
        )

    async def _release(
        self, manifest: ServiceManifest, revision: str, traffic: Mapping[str, int], commit: str
    ) -> None:
        wanted = manifest.release(revision, traffic, self._labels(commit))
        applied = await self._apply(manifest.name, traffic, lambda _: wanted)
        await self._wait(f"revision {revision}", lambda: self._revision_state(revision))
        await self._wait_for_traffic(applied)

    async def _release_or_route(
        self, manifest: ServiceManifest, revision: str, traffic: Mapping[str, int], commit: str
    ) -> None:
        """Releases a revision; only moves the traffic if it exists with other settings.

        Such a revision was created for the same commit, for example by a piped with another id.
        """
        try:
            await self._release(manifest, revision, traffic, commit)
        except RevisionExists as e:
            self._log(f"Only the traffic is changed: {e.message}")
            await self._wait(f"revision {revision}", lambda: self._revision_state(revision))
            await self._route(manifest.name, traffic, commit)

    async def _route(self, name: str, traffic: Mapping[str, int], commit: str) -> None:
        def change(live: Body | None) -> Body:
            if live is None:
                raise UserMistake(
                    f"service {name} was deleted while it was deployed", hint="deploy again"
                )
            marked = with_entries(live, ("metadata", "labels"), self._labels(commit))
            return with_traffic(marked, traffic)

        generation = _generation(await self._apply(name, traffic, change))

        async def state() -> Readiness:
            return route_readiness(await self.client.service(name), generation, traffic)

        await self._wait(f"the traffic of service {name}", state)

    async def _apply(
        self, name: str, traffic: Mapping[str, int], change: Callable[[Body | None], Body]
    ) -> Body:
        """Sends a service that follows from the live one; reads it again if others changed it."""
        shares = ", ".join(f"{revision} {percent}%" for revision, percent in traffic.items())
        for _ in range(_CONFLICTS):
            live = await self.client.service(name)
            wanted = change(live)
            try:
                if live is None:
                    applied = await self.client.create_service(wanted)
                else:
                    version = text_at(live, "metadata", "resourceVersion")
                    path = ("metadata", "resourceVersion")
                    applied = await self.client.replace_service(with_value(wanted, path, version))
            except ServiceChanged as e:
                self._log(f"Service {name} was changed meanwhile ({e.message}), again")
            else:
                done = "Created" if live is None else "Updated"
                self._log(f"{done} service {name} with the traffic: {shares}")
                return applied
        raise Unavailable(
            f"others change service {name} all the time, so it was not deployed",
            hint="find out who does, and deploy again",
        )

    async def _revision_state(self, revision: str) -> Readiness:
        return revision_readiness(await self.client.revision(revision))

    async def _wait_for_traffic(self, applied: Body) -> None:
        name, generation = text_at(applied, "metadata", "name"), _generation(applied)

        async def state() -> Readiness:
            return service_readiness(await self.client.service(name), generation)

        await self._wait(f"service {name}", state)

    async def _wait(self, what: str, state: Callable[[], Awaitable[Readiness]]) -> None:
        """Waits until something is ready, and logs why it is not as often as that changes."""
        reason = ""

        async def check() -> Readiness | None:
            nonlocal reason
            found = await state()
            if found.is_ready or found.has_failed:
                return found
            if found.reason != reason:
                reason = found.reason
                self._log(f"Waiting for {what}: {reason}")
            return None

        result = await self.polling.until(check)
        if result is None:
            raise Unavailable(
                f"{what} was not ready within {Duration(self.polling.within)}: {reason}",
                hint="look at the service in the console of Cloud Run, and deploy again",
            )
        if result.has_failed:
            raise UserMistake(
                f"{what} is not ready: {result.reason}",
                hint="correct the service manifest or the image of its container",
            )

    def _log(self, text: str) -> None:
        self.stage.log.info(text)

    async def _display(self, traffic: Mapping[str, int]) -> None:
        shares = (f"{revision} {percent}%" for revision, percent in traffic.items() if percent)
        await self.stage.metadata.put({DISPLAY_KEY: ", ".join(shares)})


def _generation(service: Body) -> int:
    return at(service, "metadata", "generation") or 0
