# SPDX-License-Identifier: Apache-2.0
"""The stages of the plugin: sync, canary rollout, promote and rollback."""

import asyncio
from dataclasses import dataclass

from pipecd.plugins.aws_lambda.config import LambdaFunction, LambdaPromoteOptions
from pipecd.plugins.aws_lambda.functions import Functions
from pipecd.plugins.aws_lambda.manifest import is_from_git, read_manifest
from pipecd.plugins.aws_lambda.package import pack
from pipecd.plugins.aws_lambda.traffic import ALIAS, Traffic
from pipecd.sdk import DISPLAY_KEY, Source, StageContext, StageResult, UserMistake
from pipecd.sdk.aws import ownership_tags

_PERCENTAGE_KEY = "promote-percentage"
# Whether this deployment has created the alias.
_CREATED_ALIAS = "created-alias"
# Which function the stage has sent, with the time of its last change.
_APPLIED = "applied-function"


@dataclass(frozen=True)
class StageRun:
    """One execution of a stage."""

    stage: StageContext
    functions: Functions

    async def sync(self) -> StageResult:
        """LAMBDA_SYNC: publishes a version and gives all traffic to it."""
        function = await self._manifest(self.stage.target)
        await self._store_original(function.name)
        version = await self._publish(function)
        await self._route(function.name, Traffic(version))
        return StageResult.succeeded(f"Version {version} gets all traffic")

    async def rollout(self) -> StageResult:
        """LAMBDA_CANARY_ROLLOUT: publishes a version without traffic."""
        function = await self._manifest(self.stage.target)
        await self._store_original(function.name)
        version = await self._publish(function)
        await self.stage.shared.put({_rollout_key(function.name): version})
        await self.stage.metadata.put({DISPLAY_KEY: f"version {version}"})
        return StageResult.succeeded(f"Version {version} is published, without traffic")

    async def promote(self) -> StageResult:
        """LAMBDA_PROMOTE: gives a share of the traffic to the published version."""
        percent = int(self.stage.options(LambdaPromoteOptions).percent)
        await self.stage.metadata.put({_PERCENTAGE_KEY: str(percent)})
        function = await self._manifest(self.stage.target)
        version = await self.stage.shared.get(_rollout_key(function.name))
        if version is None:
            raise UserMistake(
                "there is no version to promote",
                hint="put the stage LAMBDA_CANARY_ROLLOUT before LAMBDA_PROMOTE",
            )
        current = await self.functions.traffic(function.name)
        if current is not None:
            original = await self.stage.shared.get(self._original_key)
            before = Traffic.decode(original).primary if original else ""
            traffic = current.shifted(version, percent, original=before)
        elif percent == 100 or self.stage.running is None:
            # Nothing has served before.
            traffic = Traffic(version)
        else:
            raise UserMistake(
                f"function {function.name} has no alias {ALIAS}, so no other version can get the "
                "rest of the traffic",
                hint="create the alias for the running version, or deploy with a quick sync",
            )
        await self.stage.shared.put({self._promoted_key: traffic.encode()})
        await self._route(function.name, traffic)
        return StageResult.succeeded(f"The traffic goes to {traffic}")

    async def rollback(self) -> StageResult:
        """LAMBDA_ROLLBACK: restores the traffic first, then the function of the running commit."""
        if self.stage.running is None:
            return StageResult.failed(
                "There is no commit to roll back to: this is the first deployment; "
                "correct the function by a new commit"
            )
        function = await self._manifest(self.stage.running)
        if (renamed := await self._other_function(function.name)) is not None:
            # The versions of one function mean nothing to another one.
            return StageResult.succeeded(
                f"Function {function.name} is unchanged; function {renamed} is left as it is"
            )
        original = await self.stage.shared.get(self._original_key)
        done = "The traffic was not changed"
        if original is not None:
            traffic = Traffic.decode(original)
            if await self.functions.traffic(function.name) != traffic:
                await self.functions.route(function.name, traffic)
            done = f"The traffic goes to {traffic}"
            await self._display(traffic)
        await self._apply(function, self.stage.running.commit, replaced=self.stage.target)
        if original is None and await self.stage.shared.get(_CREATED_ALIAS) is not None:
            # There was no alias whose traffic could be restored.
            traffic = Traffic(await self.functions.publish(function.name))
            await self.functions.route(function.name, traffic)
            done = f"The traffic goes to {traffic}"
            await self._display(traffic)
        return StageResult.succeeded(done)

    async def _manifest(self, source: Source) -> LambdaFunction:
        return await asyncio.to_thread(read_manifest, source, self.stage.plugin.name)

    async def _other_function(self, name: str) -> str | None:
        """Returns the function of the failed commit if it is not the one with this name."""
        failed = await self._readable_manifest(self.stage.target)
        return failed.name if failed and failed.name != name else None

    async def _readable_manifest(self, source: Source) -> LambdaFunction | None:
        """Returns the manifest of a commit, None if it has mistakes."""
        try:
            return await self._manifest(source)
        except UserMistake:
            return None

    async def _publish(self, function: LambdaFunction) -> str:
        """Publishes a version, only one also if the stage is killed and repeated.

        AWS publishes the same version again as long as the function does not change, and it changes
        when the code is sent again.
        """
        commit = self.stage.target.commit
        applied = await self.stage.metadata.get(_APPLIED)
        if applied is None or applied != await self._mark(function.name, commit):
            await self._apply(function, commit, replaced=self.stage.running)
            await self.stage.metadata.put({_APPLIED: await self._mark(function.name, commit)})
        return await self.functions.publish(function.name)

    async def _mark(self, name: str, commit: str) -> str:
        """Returns what tells the function of this stage from one that somebody else has changed."""
        return f"{commit} {await self.functions.last_modified(name)}"

    async def _apply(
        self, function: LambdaFunction, commit: str, *, replaced: Source | None
    ) -> None:
        package = None
        if is_from_git(function):
            package = await pack(function.source, self.stage.host.git_variables)
        deployment = self.stage.deployment
        tags = ownership_tags(
            piped_id=deployment.piped_id, application_id=deployment.application_id, commit=commit
        )
        before = await self._readable_manifest(replaced) if replaced else None
        if before is not None and before.name != function.name:
            before = None
        await self.functions.apply(function, package, {**function.tags, **tags}, replaced=before)

    async def _store_original(self, name: str) -> None:
        """Stores the traffic before the deployment; a repeated stage does not store its own."""
        for key in (self._original_key, _CREATED_ALIAS):
            if await self.stage.shared.get(key) is not None:
                return
        traffic = await self.functions.traffic(name)
        if traffic is not None:
            await self.stage.shared.put({self._original_key: traffic.encode()})
        else:
            await self.stage.shared.put({_CREATED_ALIAS: "true"})

    async def _route(self, name: str, traffic: Traffic) -> None:
        await self.functions.route(name, traffic)
        await self._display(traffic)

    async def _display(self, traffic: Traffic) -> None:
        await self.stage.metadata.put({DISPLAY_KEY: str(traffic)})

    @property
    def _original_key(self) -> str:
        return f"original-traffic-{self.stage.deployment.running_commit}"

    @property
    def _promoted_key(self) -> str:
        return f"latest-promote-traffic-{self.stage.deployment.running_commit}"


def _rollout_key(name: str) -> str:
    return f"{name}-rollout"
