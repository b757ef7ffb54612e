# SPDX-License-Identifier: Apache-2.0
"""The plan that a stage showed, saved until another stage of the deployment applies it.

The file may contain secrets, so it stays on the machine of piped, closed to other users. Only the
digest of its changes is stored with the deployment. A piped that lost the file plans again, and
applies the new plan if the digest is the same.
"""

import asyncio
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipecd.plugins.terraform.plan import Plan, ResourceChange
from pipecd.sdk import StageContext

_DIGEST, _HAS_CHANGES = "plan-digest", "plan-has-changes"
_STARTED = "apply-started"
# The saved plans of deployments that ended without applying them.
_FORGOTTEN_AFTER = 7 * 24 * 3600.0


@dataclass(frozen=True)
class ShownPlan:
    """What is known of the plan that was shown to people.

    `changes` is None where the saved plan was lost.
    """

    digest: str
    has_changes: bool
    changes: tuple[ResourceChange, ...] | None


@dataclass(frozen=True)
class SavedPlan:
    """The saved plan of a deployment."""

    stage: StageContext
    directory: Path

    @property
    def file(self) -> Path:
        """The plan in the format of Terraform."""
        return self.directory / "plan"

    async def prepare(self) -> None:
        """Creates an empty directory for a new plan."""
        await self.remove()
        await asyncio.to_thread(self.directory.mkdir, parents=True, mode=0o700)

    async def record(self, plan: Plan, *, has_changes: bool) -> None:
        """Records the plan as the one that was shown."""
        changes = json.dumps([asdict(change) for change in plan.changes])
        await asyncio.to_thread((self.directory / "changes.json").write_text, changes)
        await self.stage.shared.put(
            {_DIGEST: plan.digest, _HAS_CHANGES: "true" if has_changes else "false"}
        )

    async def shown(self) -> ShownPlan | None:
        """Returns the plan that was shown, or None if no stage has shown one."""
        digest = await self.stage.shared.get(_DIGEST)
        if digest is None:
            return None
        has_changes = await self.stage.shared.get(_HAS_CHANGES) == "true"
        return ShownPlan(digest, has_changes, await asyncio.to_thread(self._changes))

    def _changes(self) -> tuple[ResourceChange, ...] | None:
        try:
            read: Any = json.loads((self.directory / "changes.json").read_bytes())
            return tuple(
                ResourceChange(each["address"], tuple(each["actions"]), each["is_imported"])
                for each in read
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def is_applying(self) -> bool:
        """Reports whether this stage began to apply before it was interrupted."""
        return await self.stage.metadata.get(_STARTED) is not None

    async def mark_applying(self) -> None:
        """Records that the apply of this stage begins."""
        await self.stage.metadata.put({_STARTED: "true"})

    async def remove(self) -> None:
        """Removes the files."""
        await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)


def remove_forgotten(directory: Path) -> None:
    """Creates the directory, and removes plans in it that nobody is going to apply any more."""
    directory.mkdir(exist_ok=True, mode=0o700)
    oldest = time.time() - _FORGOTTEN_AFTER
    for path in directory.iterdir():
        if path.stat().st_mtime < oldest:
            shutil.rmtree(path, ignore_errors=True)
