# SPDX-License-Identifier: Apache-2.0
"""The stages of the plugin: plan, apply and rollback."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.plugins.terraform.config import PlanOptions, TerraformApplication
from pipecd.plugins.terraform.plan import (
    ResourceChange,
    has_plan_before,
    is_approved_before,
)
from pipecd.plugins.terraform.saved_plan import SavedPlan
from pipecd.plugins.terraform.terraform import Terraform, TerraformRunner, only_target
from pipecd.sdk import DISPLAY_KEY, Source, StageContext, StageResult, UserMistake

_NO_CHANGES = "No changes: the infrastructure is as it is defined in Git"
_MAX_NAMED = 10


@dataclass(frozen=True)
class StageRun:
    """One execution of a stage; `directory` is that of the plugin."""

    stage: StageContext
    runner: TerraformRunner
    directory: Path

    @property
    def saved(self) -> SavedPlan:
        """The saved plan of the deployment."""
        return SavedPlan(self.stage, self.directory / "plans" / self.stage.deployment.id)

    async def plan(self) -> StageResult:
        """TERRAFORM_PLAN: shows a plan and saves it."""
        options = self.stage.options(PlanOptions)
        saved = self.saved
        await saved.prepare()
        async with self._terraform(self.stage.target, newest=True) as terraform:
            planned = await terraform.plan(saved.file)
        await saved.record(planned.plan, has_changes=planned.has_changes)
        if planned.has_changes:
            await self._display(planned.plan.signs)
            return StageResult.succeeded(f"Plan: {planned.plan.summary}")
        await self._display("no changes")
        if options.exit_on_no_changes:
            await saved.remove()
            return StageResult.exited(_NO_CHANGES)
        return StageResult.succeeded(_NO_CHANGES)

    async def apply(self) -> StageResult:
        """TERRAFORM_APPLY: applies the plan that was shown; without one it plans itself."""
        stages, saved = self._executed_stages(), self.saved
        shown = await saved.shown() if has_plan_before(stages, self.stage.index) else None
        async with self._terraform(self.stage.target, newest=shown is None) as terraform:
            if shown is None:
                return await self._plan_and_apply(
                    terraform, is_guarded=not is_approved_before(stages, self.stage.index)
                )
            is_interrupted = await saved.is_applying()
            has_file = saved.file.is_file() and shown.changes is not None
            if has_file and not is_interrupted:
                if not shown.has_changes:
                    return StageResult.succeeded(_NO_CHANGES)
                self._guard(shown.changes or (), stages)
                await terraform.show_plan(saved.file)
                await saved.mark_applying()
                await terraform.apply(saved.file)
            elif not await self._apply_again(terraform, stages, is_interrupted=is_interrupted):
                return StageResult.succeeded(_NO_CHANGES)
        await saved.remove()
        return StageResult.succeeded("The plan is applied")

    def _executed_stages(self) -> tuple[str, ...]:
        """Returns the names of the stages of the pipeline, with "" for those that were skipped."""
        # Quick sync has no stage before it.
        names = self.stage.target.stage_names() if self.stage.config else ()
        skipped = self.stage.deployment.skipped_stages
        return tuple("" if i in skipped else name for i, name in enumerate(names))

    async def _apply_again(
        self, terraform: Terraform, stages: tuple[str, ...], *, is_interrupted: bool
    ) -> bool:
        """Plans again because the saved plan is lost or partly applied, and applies the same.

        Returns whether there was something to apply.
        """
        shown = await self.saved.shown()
        why = "the saved plan is lost"
        if is_interrupted:
            why = "its apply was interrupted"
        elif shown is not None and shown.changes is not None:
            why = "the backend saves no plans"
        terraform.log(f"Planning again, because {why}")
        with tempfile.TemporaryDirectory(dir=self.directory / "temporary") as directory:
            file = Path(directory, "plan")
            planned = await terraform.plan(file)
            if not planned.has_changes:
                return False
            plan = planned.plan
            is_same = shown is not None and plan.digest == shown.digest
            is_rest = (
                is_interrupted
                and shown is not None
                and shown.changes is not None
                and plan.is_remainder_of(shown.changes)
            )
            if not is_same and not is_rest:
                raise UserMistake(
                    f"{why}, and planning again finds other changes than those shown "
                    f"({plan.summary}); they were not applied",
                    hint="start a new deployment, which shows a new plan",
                )
            self._guard(plan.changes, stages)
            await self.saved.mark_applying()
            await terraform.apply(planned.file)
        return True

    async def rollback(self) -> StageResult:
        """TERRAFORM_ROLLBACK: applies the running commit."""
        if self.stage.running is None:
            return StageResult.failed(
                "There is no commit to roll back to: this is the first deployment; "
                "correct the state by a new commit"
            )
        await self.saved.remove()
        async with self._terraform(self.stage.running, newest=True) as terraform:
            # What the failed deployment created is destroyed again.
            return await self._plan_and_apply(terraform, is_guarded=False)

    async def _plan_and_apply(self, terraform: Terraform, *, is_guarded: bool) -> StageResult:
        with tempfile.TemporaryDirectory(dir=self.directory / "temporary") as directory:
            file = Path(directory, "plan")
            planned = await terraform.plan(file)
            if not planned.has_changes:
                await self._display("no changes")
                return StageResult.succeeded(_NO_CHANGES)
            await self._display(planned.plan.signs)
            if is_guarded:
                self._refuse_destroys(planned.plan.changes)
            await terraform.apply(planned.file)
        return StageResult.succeeded(f"Applied: {planned.plan.summary}")

    def _guard(self, changes: tuple[ResourceChange, ...], stages: tuple[str, ...]) -> None:
        if not is_approved_before(stages, self.stage.index):
            self._refuse_destroys(changes)

    def _refuse_destroys(self, changes: tuple[ResourceChange, ...]) -> None:
        """Refuses to destroy resources where that needs an approval."""
        settings = self.stage.target.application_settings(
            self.stage.plugin.name, TerraformApplication
        )
        is_required = (
            settings.require_approval_for_destroy
            or only_target(self.stage).require_approval_for_destroy
        )
        destroyed = [change.address for change in changes if change.destroys]
        if is_required and destroyed:
            others = len(destroyed) - _MAX_NAMED
            names = ", ".join(destroyed[:_MAX_NAMED]) + (
                f" and {others} more" if others > 0 else ""
            )
            raise UserMistake(
                f"the plan destroys {names}, and nobody was asked to approve that",
                hint="put the stages TERRAFORM_PLAN and WAIT_APPROVAL before TERRAFORM_APPLY, "
                "or unset requireApprovalForDestroy",
            )

    async def _display(self, text: str) -> None:
        await self.stage.metadata.put({DISPLAY_KEY: text})

    @asynccontextmanager
    async def _terraform(self, source: Source, *, newest: bool) -> AsyncIterator[Terraform]:
        """Opens a working copy when no apply of the application runs any more."""
        log = self.stage.log.info
        await self.runner.applies.wait_for_former(self.stage.deployment.application_id, log)
        async with self.runner.open(self.stage, source, log=log, newest=newest) as terraform:
            yield terraform
