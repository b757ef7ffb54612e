# SPDX-License-Identifier: Apache-2.0
"""A platform plugin that deploys files into a directory, one subdirectory per application.

An application declares files under `files/`. A deployment copies them into the target's directory; a
file whose content is `ill` is unhealthy. A file changed there by hand is drift.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipecd.sdk import (
    DeploymentPlugin,
    DeployTarget,
    Health,
    LiveContext,
    LiveState,
    LiveStatePlugin,
    PlanContext,
    PlannedStage,
    Resource,
    Source,
    Spec,
    Stage,
    StageContext,
    StageResult,
    StartContext,
    SyncState,
    SyncStatus,
    Version,
)
from servers.samples import CART

SYNC = "SHELF_SYNC"
CART_ON_SHELF = CART + "  plugins: {shelf: {}}\n"
_PROGRAM = """#!{python}
import sys
sys.path.append({path!r})
from pipecd.sdk import serve
from servers.directory_plugin import DirectoryPlugin
if __name__ == "__main__":
    serve(DirectoryPlugin)
"""
_POLL_INTERVAL = 0.02


def write_program(directory: Path) -> Path:
    """Writes a program that serves the plugin."""
    program = directory / "shelf-plugin"
    tests = str(Path(__file__).parent.parent)
    program.write_text(_PROGRAM.format(python=sys.executable, path=tests))
    program.chmod(0o755)
    return program


def piped_entry(directory: Path, port: int) -> dict[str, Any]:
    """Returns the plugin's entry in the configuration of a piped; its one target is `here`."""
    return {
        "name": "shelf",
        "url": f"file://{write_program(directory)}",
        "port": port,
        "deployTargets": [{"name": "here", "config": {"directory": str(directory / "shelf")}}],
    }


class TargetConfig(Spec):
    """A deploy target: a directory with one subdirectory per application."""

    directory: str


def contents(directory: Path) -> dict[str, str]:
    """The files of a directory by name."""
    if not directory.is_dir():
        return {}
    return {file.name: file.read_text() for file in sorted(directory.iterdir())}


def declared(source: Source) -> dict[str, str]:
    return contents(source.application_directory / "files")


class DirectoryPlugin(DeploymentPlugin, LiveStatePlugin):
    """Compares the deployed files with those in Git and reports changes."""

    stages = (Stage(SYNC),)
    tells_changes = True

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.sources: list[Path] = []
        # Applications whose reads hang, or fail with an error.
        self.hanging: set[str] = set()
        self.errors: dict[str, Exception] = {}
        self._whose: dict[Path, str] = {}
        self._seen: dict[Path, dict[str, str]] = {}

    async def prepare(self, start: StartContext) -> None:
        watching = asyncio.create_task(self._watch(start))
        start.lifetime.push_async_callback(_ended, watching)

    async def _watch(self, start: StartContext) -> None:
        """Reports the applications whose files changed to piped."""
        while True:
            now = {place: contents(place) for place in self._whose}
            if changed := [self._whose[p] for p, found in now.items() if found != self._seen[p]]:
                start.host.live_state_changed(changed)
            self._seen = now
            await asyncio.sleep(_POLL_INTERVAL)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        return [Version(plan.target.commit[:7])]

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        return [PlannedStage(SYNC)]

    async def execute(self, stage: StageContext) -> StageResult:
        for target in stage.targets:
            place = _place(target, stage.deployment.application_name)
            place.mkdir(parents=True, exist_ok=True)
            desired = declared(stage.target)
            for name in contents(place).keys() - desired:
                (place / name).unlink()
            for name, content in desired.items():
                (place / name).write_text(content)
        return StageResult.succeeded()

    async def live_state(self, look: LiveContext) -> LiveState:
        self.reads.append(look.application_name)
        self.sources.append(look.source.application_directory)
        if look.application_name in self.hanging:
            await asyncio.Event().wait()
        if (error := self.errors.get(look.application_name)) is not None:
            raise error
        desired = declared(look.source)
        resources: list[Resource] = []
        differences: list[str] = []
        for target in look.targets:
            place = _place(target, look.application_name)
            live = self._seen[place] = contents(place)
            self._whose[place] = look.application_id
            resources += [_resource(target, name, content) for name, content in live.items()]
            differences += _differences(live, desired)
        if not differences:
            return LiveState(resources, SyncState(SyncStatus.SYNCED))
        summary = f"{len(differences)} files differ"
        details = "\n".join([f"compared with {look.source.commit[:7]}:", *differences])
        return LiveState(resources, SyncState(SyncStatus.OUT_OF_SYNC, summary, details))


def _place(target: DeployTarget, application: str) -> Path:
    return Path(target.settings(TargetConfig).directory) / application


def _resource(target: DeployTarget, name: str, content: str) -> Resource:
    return Resource(
        id=name,
        name=name,
        kind="File",
        target=target.name,
        health=Health.UNHEALTHY if content == "ill" else Health.HEALTHY,
        health_text=content,
        metadata={"Content": content},
    )


def _differences(live: dict[str, str], desired: dict[str, str]) -> list[str]:
    return [
        f"- {name}: {live.get(name)}\n+ {name}: {desired.get(name)}"
        for name in sorted(live.keys() | desired.keys())
        if live.get(name) != desired.get(name)
    ]


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
