# SPDX-License-Identifier: Apache-2.0
"""The stages on one deploy target.

Each writes what shall run and waits until it does, so it can be run again from its start after
piped was killed: what already runs stays.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipecd.plugins.process.client import SupervisorClient
from pipecd.plugins.process.config import (
    ProcessApplication,
    ProcessCanaryRolloutOptions,
    ProcessTarget,
    ProcessTrafficRoutingOptions,
)
from pipecd.plugins.process.desired import (
    ALL_TO_PRIMARY,
    CANARY,
    PRIMARY,
    DesiredApplication,
    DesiredVariant,
    Listener,
)
from pipecd.plugins.process.instance import ApplicationStatus, Instance
from pipecd.plugins.process.logs import last_lines
from pipecd.plugins.process.programs import own_user
from pipecd.plugins.process.releases import (
    copy_release,
    read_tree,
    readers_of_releases,
    remove_releases,
)
from pipecd.plugins.process.rollout import Progress, rollout_progress, timeout_failure
from pipecd.plugins.process.wanted import (
    WantedApplication,
    check_allowed,
    check_conflicts,
    check_limits,
    inherited_variables,
    name_some,
    wanted_application,
)
from pipecd.sdk import (
    DISPLAY_KEY,
    Source,
    StageContext,
    StageResult,
    Unavailable,
    UserMistake,
)

_LOG_LINES = 20
_MOST_NAMED = 5
_MARGIN_SECONDS = 2.0
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True)
class StageRun:
    """One stage on one deploy target."""

    stage: StageContext
    settings: ProcessTarget
    client: SupervisorClient
    log: Callable[[str], None]

    async def sync(self) -> StageResult:
        """PROCESS_SYNC: all requests go to the new version, without a canary."""
        wanted, variant = await self._release(self.stage.target)
        desired = self._only(variant, wanted.listener)
        await self._roll_out(desired, PRIMARY)
        return await self._serves(f"Commit {variant.program.commit[:7]} runs", desired)

    async def roll_out_canary(self) -> StageResult:
        """PROCESS_CANARY_ROLLOUT: starts the new version beside the old one, without requests."""
        current = await self._current()
        _, variant = await self._release(self.stage.target)
        primary = current.variants[PRIMARY]
        replicas = self.stage.options(ProcessCanaryRolloutOptions).replicas.of(primary.replicas)
        variant = replace(variant, replicas=replicas)
        before = current.variants.get(CANARY)
        if before is None or before.program.identity != variant.program.identity:
            current = replace(current, weights=ALL_TO_PRIMARY)
        await self._roll_out(current.with_variant(CANARY, variant), CANARY)
        commit = variant.program.commit[:7]
        run = f"instance of commit {commit} runs" if replicas == 1 else f"instances of {commit} run"
        return StageResult.succeeded(f"{replicas} {run} as canary")

    async def route_traffic(self) -> StageResult:
        """PROCESS_TRAFFIC_ROUTING: sets the shares of the variants."""
        primary, canary = self.stage.options(ProcessTrafficRoutingOptions).shares()
        current = await self._current()
        if current.listener is None:
            raise UserMistake(
                "the application has no port, so there are no requests to route",
                hint="set input.port, or remove the stage",
            )
        if canary and CANARY not in current.variants:
            raise UserMistake(
                "there is no canary to send requests to",
                hint="put the stage PROCESS_CANARY_ROLLOUT before this one",
            )
        desired = replace(current, weights={PRIMARY: primary, CANARY: canary})
        shares = {name: share for name, share in desired.weights.items() if share}
        await self.client.apply(desired)
        text = f"{primary} % of requests go to primary, {canary} % to canary"
        await self._wait(
            lambda status: Progress(text, is_done=status.routed == shares),
            lambda status: Progress(
                text, failure=f"only {', '.join(status.routed) or 'nobody'} can serve requests"
            ),
            _MARGIN_SECONDS + max(v.health.timeout for v in desired.variants.values()),
        )
        await self.stage.metadata.put({DISPLAY_KEY: f"primary {primary}%, canary {canary}%"})
        return StageResult.succeeded(text)

    async def roll_out_primary(self) -> StageResult:
        """PROCESS_PRIMARY_ROLLOUT: replaces the primary variant; a canary stays."""
        current = await self._current()
        wanted, variant = await self._release(self.stage.target)
        desired = replace(current.with_variant(PRIMARY, variant), listener=wanted.listener)
        await self._roll_out(desired, PRIMARY)
        return await self._serves(f"Commit {variant.program.commit[:7]} runs as primary", desired)

    async def clean_canary(self) -> StageResult:
        """PROCESS_CANARY_CLEAN: sends all requests to primary and ends the canary."""
        current = await self._current()
        if CANARY not in current.variants:
            return StageResult.succeeded("There is no canary")
        desired = replace(current.with_variant(CANARY, None), weights=ALL_TO_PRIMARY)
        await self.client.apply(desired)
        await self._wait_for_end(lambda i: i.variant == CANARY, current)
        await self._remove_releases(desired)
        return StageResult.succeeded("The canary has ended")

    async def rollback(self) -> StageResult:
        """PROCESS_ROLLBACK: all requests go to the running commit again."""
        if self.stage.running is None:
            status = await self.client.status(self._nothing.id)
            if status is None:
                return StageResult.succeeded("Nothing of this deployment runs")
            await self.client.apply(self._nothing)
            await self._wait_for_end(lambda _: True, status.desired)
            return StageResult.succeeded(
                "No version ran before this deployment: its programs have ended"
            )
        wanted, variant = await self._release(self.stage.running)
        desired = self._only(variant, wanted.listener)
        await self._roll_out(desired, PRIMARY)
        return await self._serves(f"Commit {variant.program.commit[:7]} runs again", desired)

    async def warn_of_status_page(self) -> None:
        """Logs that error rates cannot be read, which the next stage may need."""
        status = await self.client.status(self._nothing.id)
        if status and status.status_page and status.status_page.error:
            self.log(f"Error rates cannot be read: {status.status_page.error}")

    @property
    def _nothing(self) -> DesiredApplication:
        deployment = self.stage.deployment
        return DesiredApplication(deployment.application_id, deployment.application_name)

    def _only(self, primary: DesiredVariant, listener: Listener | None) -> DesiredApplication:
        """Returns a primary variant with all requests, without a canary."""
        variants = {PRIMARY: primary}
        return replace(self._nothing, variants=variants, weights=ALL_TO_PRIMARY, listener=listener)

    @property
    def _releases(self) -> Path:
        directory = self.client.directory.application(self.stage.deployment.application_id)
        return directory / "releases"

    async def _current(self) -> DesiredApplication:
        """Returns what shall run now; the running commit if the supervisor knows nothing."""
        status = await self.client.status(self._nothing.id)
        if status is not None and PRIMARY in status.desired.variants:
            return replace(status.desired, name=self._nothing.name)
        if self.stage.running is None:
            raise UserMistake(
                "no version of the application runs yet",
                hint="deploy it once with PROCESS_SYNC, which quick sync does",
            )
        self.log("The supervisor does not know the application: starting the running commit first")
        wanted, variant = await self._release(self.stage.running)
        desired = self._only(variant, wanted.listener)
        await self._roll_out(desired, PRIMARY)
        return desired

    async def _release(self, source: Source) -> tuple[WantedApplication, DesiredVariant]:
        """Copies the files of a commit."""
        settings = source.application_settings(self.stage.plugin.name, ProcessApplication)
        check_allowed(settings.input, self.settings, own_user=own_user())
        tree = await asyncio.to_thread(
            read_tree,
            source.application_directory,
            source.working_copy,
            config=source.config_filename,
            limits=self.settings.release_limits,
        )
        wanted = wanted_application(
            settings.input, self.settings, digest=tree.digest, commit=source.commit
        )
        others = {
            each.desired.id: (each.desired.name, each.desired.listener)
            for each in await self.client.statuses()
        }
        check_conflicts(self._nothing.id, wanted.listener, others)
        check_limits(wanted.variant.program.limits)
        release = await asyncio.to_thread(
            copy_release, tree, source.commit, self._releases, user=settings.input.limits.user
        )
        count = len(tree.files)
        self.log(f"Release {release.path.name} has {count} file{'' if count == 1 else 's'}")
        if user := settings.input.limits.user:
            readers = await asyncio.to_thread(readers_of_releases, user)
            if readers:
                text = name_some(readers, _MOST_NAMED)
                self.log(f"It can also be read by others in the group of {user!r}: {text}")
        inherited = inherited_variables(os.environ, self.settings.variables)
        return wanted, wanted.at(str(release.path), release.revision, inherited)

    async def _roll_out(self, desired: DesiredApplication, variant: str) -> None:
        wanted = desired.variants[variant]
        program = wanted.program
        self.log(f"Starting {' '.join((program.command, *program.args))} as {variant}")
        await self.client.apply(desired)
        await self._wait(
            lambda status: rollout_progress(status, variant),
            lambda status: timeout_failure(status, variant),
            wanted.health.timeout + _MARGIN_SECONDS,
        )
        if desired.listener and desired.weights.get(variant):
            self.log(f"Requests to {desired.listener} go to {variant}")

    async def _wait(
        self,
        decide: Callable[[ApplicationStatus], Progress],
        on_timeout: Callable[[ApplicationStatus], Progress],
        seconds: float,
    ) -> None:
        """Waits until a rollout is done; raises its failure."""
        shown, last = "", None
        try:
            async with asyncio.timeout(seconds), aclosing(self._changes()) as changes:
                async for status in changes:
                    if status is None:
                        continue
                    last, progress = status, decide(status)
                    if progress.text != shown:
                        shown = progress.text
                        self.log(shown)
                    if progress.failure:
                        raise self._failure(progress)
                    if progress.is_done:
                        return
        except TimeoutError:
            pass
        if last is None:
            raise Unavailable(
                f"the supervisor reported nothing within {seconds:g}s",
                hint=f"read {self.client.directory.log_file}, and deploy again",
            )
        raise self._failure(on_timeout(last))

    async def _changes(self) -> AsyncGenerator[ApplicationStatus | None]:
        """Yields the status of this application at every change, also of a later supervisor.

        None means that nothing of it runs or shall run.
        """
        while True:
            try:
                async with aclosing(self.client.watch()) as watched:
                    async for statuses in watched:
                        ours = (s for s in statuses if s.desired.id == self._nothing.id)
                        yield next(ours, None)
            except OSError:
                pass
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.client.ensure()

    async def _wait_for_end(
        self, is_meant: Callable[[Instance], bool], before: DesiredApplication
    ) -> None:
        """Waits until instances have ended, at most for their grace periods."""
        seconds = 2 * max((v.grace_period for v in before.variants.values()), default=0.0)
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds + _MARGIN_SECONDS),
                aclosing(self._changes()) as changes,
            ):
                async for status in changes:
                    if status is None or not any(is_meant(i) for i in status.instances):
                        return

    def _failure(self, progress: Progress) -> UserMistake:
        instance = progress.failed
        if instance is None or not instance.start_time:
            # It was never started, so the failure says everything.
            return UserMistake(progress.failure)
        lines = last_lines(Path(instance.log), instance.log_offset, _LOG_LINES)
        if lines:
            self.log(f"The last lines of {Path(instance.log).name}:")
            for line in lines:
                self.log(f"  {line}")
        tail = f" ({lines[-1].strip()})" if lines else ", and printed nothing"
        return UserMistake(f"{progress.failure}{tail}", hint=_REMEDY)

    async def _serves(self, text: str, desired: DesiredApplication) -> StageResult:
        await self._remove_releases(desired)
        address = f" at {desired.listener}" if desired.listener else ""
        return StageResult.succeeded(f"{text}{address}")

    async def _remove_releases(self, desired: DesiredApplication) -> None:
        """Removes the releases that nothing needs any more, except for the previous one."""
        status = await self.client.status(self._nothing.id)
        kept = {Path(variant.program.release) for variant in desired.variants.values()}
        used = {Path(each.release) for each in status.instances} if status else set[Path]()
        # What still ends is of the previous one.
        previous = 0 if used - kept else 1
        await asyncio.to_thread(remove_releases, self._releases, kept | used, previous=previous)


_REMEDY = (
    "the program must keep running, listen on 127.0.0.1 and the port in PORT, and answer its "
    "health check; correct it, its command, healthCheck or limits"
)
