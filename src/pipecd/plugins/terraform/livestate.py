# SPDX-License-Identifier: Apache-2.0
"""Live state, drift and plan preview.

A plan compares the infrastructure with Git, and it is not cheap. So a result counts for ten
minutes, as long as neither the commit changes nor the plugin itself applies something. A failure
counts for a minute, and repeated ones for longer. Piped requests the live state more often.
"""

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.plugins.terraform.drift import sync_state
from pipecd.plugins.terraform.state import resource_tree
from pipecd.plugins.terraform.terraform import Planned, Terraform, TerraformRunner, only_target
from pipecd.sdk import (
    Backoff,
    LiveContext,
    LiveState,
    PipecdError,
    Preview,
    PreviewContext,
    SyncState,
    SyncStatus,
    Unavailable,
)

_INTERVAL = 600.0
# A plan that was killed is soon made again, so that the sync state is right within a minute.
_AFTER_FAILURE = Backoff(first=15.0, longest=_INTERVAL)
_CONCURRENT_PLANS = 2
_TIMEOUT = 900.0


@dataclass(frozen=True)
class _Known:
    """A live state or why there is none, what it was made from, and until when it counts."""

    state: LiveState | PipecdError
    source: object
    until: float
    failures: int = 0
    """How many plans in a row have failed."""

    def result(self) -> LiveState:
        """Returns the live state; raises the error if there is none."""
        if isinstance(self.state, PipecdError):
            raise self.state.with_traceback(None)
        return self.state


@dataclass
class LiveStates:
    """The live states of all applications."""

    runner: TerraformRunner
    directory: Path
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = field(default_factory=dict[str, _Known])
    _deploying: set[str] = field(default_factory=set[str])
    _stages: Counter[str] = field(default_factory=Counter[str])
    """How many stages of each application have begun."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONCURRENT_PLANS))

    @contextmanager
    def deploying(self, application_id: str) -> Iterator[None]:
        """Makes no plans for an application while a stage of it runs, and then a new one."""
        self._deploying.add(application_id)
        self._stages[application_id] += 1
        try:
            yield
        finally:
            self._deploying.discard(application_id)
            self._known.pop(application_id, None)

    async def live_state(self, look: LiveContext) -> LiveState:
        """Returns the live state of an application, which may be some minutes old."""
        source = (look.source.commit, look.source.config, look.targets)
        known = self._known.get(look.application_id)
        is_deploying = look.application_id in self._deploying
        if known and (
            (is_deploying and not known.failures)
            or (known.source == source and self.clock() < known.until)
        ):
            return known.result()
        while True:
            stages = self._stages[look.application_id]
            is_deploying = look.application_id in self._deploying
            state: LiveState | PipecdError
            try:
                async with self._slots:
                    state = await self._read(look, with_drift=not is_deploying)
            except PipecdError as e:
                state = e
            if is_deploying:
                return _Known(state, source, 0).result()
            if stages == self._stages[look.application_id]:
                break
            # A stage began meanwhile: the plan is neither about the old nor about the new state.
        return self._remember(look.application_id, state, source).result()

    def _remember(
        self, application_id: str, state: LiveState | PipecdError, source: object
    ) -> _Known:
        known, failures, interval = self._known.get(application_id), 0, _INTERVAL
        if isinstance(state, PipecdError):
            failures = 1 + (known.failures if known else 0)
            interval = _AFTER_FAILURE.after(failures)
        # The plans of many applications spread over time.
        until = self.clock() + interval * random.uniform(0.9, 1.1)  # noqa: S311
        remembered = _Known(state, source, until, failures)
        self._known[application_id] = remembered
        return remembered

    async def _read(self, look: LiveContext, *, with_drift: bool) -> LiveState:
        target = look.targets[0].name if look.targets else ""
        async with (
            _limit("the plan for the live state"),
            self.runner.open(look, look.source, newest=False) as terraform,
        ):
            is_enabled = only_target(look).drift_detection_enabled
            off = "" if is_enabled else f"Drift detection is disabled for deploy target {target}"
            sync, changes = SyncState(SyncStatus.UNKNOWN, off), ()
            if is_enabled and with_drift:
                planned = await self._plan(terraform)
                changes = planned.plan.changes
                sync = SyncState(SyncStatus.SYNCED)
                if planned.has_changes:
                    sync = sync_state(planned.plan, planned.text, look.source.commit)
            return LiveState(resource_tree(await terraform.show_state(), target, changes), sync)

    async def _plan(self, terraform: Terraform) -> Planned:
        with tempfile.TemporaryDirectory(dir=self.directory / "temporary") as directory:
            return await terraform.plan(Path(directory, "plan"))

    async def preview(self, change: PreviewContext) -> Preview:
        """Returns the plan for the target source."""
        target = change.targets[0].name if change.targets else ""
        if not only_target(change).plan_preview_enabled:
            return Preview(target, f"Plan preview is disabled for deploy target {target}")
        async with (
            self._slots,
            _limit("the plan"),
            self.runner.open(change, change.target, newest=True) as terraform,
        ):
            planned = await self._plan(terraform)
        if not planned.has_changes:
            return Preview(target, "No changes were detected", no_change=True)
        names = "".join(f"# {each}\n" for each in planned.plan.changes)
        details = f"{names}\n{planned.text.strip()}\n"
        return Preview(target, planned.plan.summary, details, language="hcl")


@asynccontextmanager
async def _limit(what: str) -> AsyncIterator[None]:
    """Ends a program that hangs."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            yield
    except TimeoutError as e:
        raise Unavailable(f"{what} took longer than {_TIMEOUT / 60:g} minutes") from e
