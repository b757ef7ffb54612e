# SPDX-License-Identifier: Apache-2.0
"""Live state, drift, plans and previews of a service that runs for real."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.process.config import ProcessInput, ProcessTarget
from pipecd.plugins.process.livestate import sync_state
from pipecd.plugins.process.release_files import manifest_path
from pipecd.plugins.process.wanted import wanted_application
from pipecd.sdk import Health, LiveState, StageStatus, SyncStatus, SyncStrategy
from pipecd.sdk.testing import StageBench
from plugins.process.testbed import Service
from servers.polling import eventually


async def deployed(service: Service, **input: Any) -> StageBench:
    bench = service.commit("one", **input)
    result = await bench.run("PROCESS_SYNC")
    assert result.status is StageStatus.SUCCESS, result.message
    return bench


async def live(service: Service, bench: StageBench) -> LiveState:
    return await service.plugin.live_state(bench.live_context())


async def until(service: Service, bench: StageBench, text: str) -> LiveState:
    """Returns the live state as soon as its details have a text; every change is an event."""
    while True:
        service.host.changed_applications.clear()
        state = await live(service, bench)
        if text in state.sync.details:
            return state
        await service.host.until(lambda: bool(service.host.changed_applications))


async def test_the_tree_of_a_deployed_application(service: Service) -> None:
    state = await live(service, await deployed(service, replicas=2))
    assert state.sync.status is SyncStatus.SYNCED
    assert [(r.kind, r.name, r.health, r.parents) for r in state.resources] == [
        ("Router", f"127.0.0.1:{service.port}", Health.HEALTHY, ()),
        ("Variant", "primary", Health.HEALTHY, ("here/router",)),
        ("Process", "primary-0", Health.HEALTHY, ("here/primary",)),
        ("Process", "primary-1", Health.HEALTHY, ("here/primary",)),
    ]
    assert state.resources[1].metadata["Share"] == "100%"
    assert int(state.resources[2].metadata["Process"]) in await service.pids()


async def test_an_application_that_was_never_deployed(service: Service) -> None:
    state = await live(service, service.commit("one"))
    assert (state.sync.status, state.sync.summary) == (SyncStatus.OUT_OF_SYNC, "nothing runs")


async def test_a_killed_process_is_drift_until_it_runs_again(service: Service) -> None:
    bench = await deployed(service)
    [pid] = await service.pids()
    os.kill(pid, signal.SIGKILL)
    state = await until(service, bench, "was ended by SIGKILL")
    assert state.sync.status is SyncStatus.OUT_OF_SYNC

    async def is_synced() -> bool:
        return (await live(service, bench)).sync.status is SyncStatus.SYNCED

    await eventually(is_synced, 30)


async def test_a_changed_release_is_drift_and_the_next_sync_repairs_it(
    service: Service,
) -> None:
    bench = await deployed(service)
    [instance] = (await service.status()).of("primary")
    file = Path(instance.release) / "server.py"
    file.write_text("print('changed')")
    status = await service.status()
    assert status.changed_files == {}
    # The supervisor looks every 15 seconds; a sync looks itself.
    result = await bench.run("PROCESS_SYNC")
    assert result.status is StageStatus.SUCCESS, result.message
    [repaired] = (await service.status()).of("primary")
    assert repaired.pid != instance.pid
    assert repaired.release.endswith("-1")
    assert (await live(service, bench)).sync.status is SyncStatus.SYNCED


async def test_a_changed_release_is_repaired_by_a_commit_that_changes_other_files(
    service: Service,
) -> None:
    await deployed(service)
    [instance] = (await service.status()).of("primary")
    (Path(instance.release) / "server.py").write_text("print('changed')")
    later = service.commit("two")
    assert (await later.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    [repaired] = (await service.status()).of("primary")
    assert (repaired.pid != instance.pid, repaired.release != instance.release) == (True, True)
    last = service.commit("three")
    assert (await last.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    [kept] = (await service.status()).of("primary")
    assert kept.pid == repaired.pid, "the same files of a later commit restart nothing"


async def test_files_that_somebody_changed_are_drift(service: Service) -> None:
    bench = await deployed(service)
    status = await service.status()
    [instance] = status.of("primary")
    changed = replace(status, changed_files={instance.release: ("server.py", "data")})
    _, wanted = await service.plugin._wanted(
        bench.live_context(), bench.source, service.entry.targets[0]
    )
    sync = sync_state(changed, wanted)
    assert sync.status is SyncStatus.OUT_OF_SYNC
    assert sync.summary.startswith("somebody changed server.py, data in the release one-")


async def test_another_commit_is_drift(service: Service) -> None:
    await deployed(service)
    state = await live(service, service.commit("two", {"new": "file"}, env={"TOKEN": "hidden"}))
    assert state.sync.status is SyncStatus.OUT_OF_SYNC
    assert state.sync.details.splitlines() == [
        "commit one runs, and commit two of Git differs in the files new",
        "env.TOKEN is added",
    ]


async def test_files_of_a_release_that_is_gone_are_not_named(service: Service) -> None:
    await deployed(service)
    [instance] = (await service.status()).of("primary")
    manifest_path(Path(instance.release)).unlink()
    state = await live(service, service.commit("two", {"new": "file"}))
    assert state.sync.summary == "commit one runs, and commit two of Git differs in the files"


def test_many_files_are_counted() -> None:
    input, target = ProcessInput(command="serve"), ProcessTarget()
    one, two = (
        wanted_application(input, target, digest=name, commit=name) for name in ("one", "two")
    )
    [difference] = two.differences(one.variant, one.listener, list("abcdefg"))
    assert (difference.key, difference.text) == ("files", "the files a, b, c, d, e and 2 more")


async def test_a_canary_is_drift(service: Service) -> None:
    one = await deployed(service)
    two = service.commit("two", {"new": "file"}, running=one)
    assert (await two.run("PROCESS_CANARY_ROLLOUT")).status is StageStatus.SUCCESS
    state = await live(service, one)
    assert state.sync.summary == "a canary runs that no deployment has ended"
    assert "canary-0" in {resource.name for resource in state.resources}


@pytest.mark.parametrize(
    ("files", "input", "strategy", "summary"),
    [
        pytest.param({"new": ""}, {}, SyncStrategy.PIPELINE, "Sync progressively because of changes in new", id="a file"),
        pytest.param({}, {"env": {"A": "b"}}, SyncStrategy.PIPELINE, "Sync progressively because env.A changed", id="the environment"),
        pytest.param({}, {"replicas": 3}, SyncStrategy.QUICK_SYNC, "Quick sync because only replicas changed", id="replicas"),
        pytest.param({}, {}, SyncStrategy.QUICK_SYNC, "Quick sync because nothing that runs has changed", id="nothing"),
    ],
)  # fmt: skip
async def test_the_plan_by_what_changes(
    service: Service,
    files: dict[str, str],
    input: dict[str, Any],
    strategy: SyncStrategy,
    summary: str,
) -> None:
    one, two = service.commit("one"), service.commit("two", files, **input)
    decided = await service.plugin.strategy(two.plan_context(running=one.source))
    assert decided is not None
    assert (decided.strategy, decided.summary) == (strategy, summary)
    [version] = await service.plugin.versions(two.plan_context())
    assert version.version == "two"


async def test_a_preview_names_files_and_settings_without_values(service: Service) -> None:
    one = service.commit("one", {"old": "", "changed": "1"})
    two = service.commit("two", {"changed": "2", "new": ""}, env={"TOKEN": "hidden"}, replicas=2)
    [preview] = await service.plugin.preview(two.preview_context(running=one.source))
    assert preview.summary == "3 files and 2 settings will change"
    assert preview.details.splitlines() == [
        "~ changed",
        "- old",
        "+ new",
        "replicas: 1 → 2",
        "env.TOKEN is added",
    ]
    [same] = await service.plugin.preview(one.preview_context(running=one.source))
    assert same.no_change


@pytest.mark.parametrize(
    ("files", "input", "summary"),
    [
        ({"new": ""}, {"replicas": 2}, "1 file and 1 setting will change"),
        ({"new": ""}, {}, "1 file will change"),
        ({"new": "", "other": ""}, {}, "2 files will change"),
        ({}, {"replicas": 2}, "1 setting will change"),
        ({}, {}, "nothing will change"),
    ],
)
async def test_a_preview_counts_in_singular_and_plural(
    service: Service, files: dict[str, str], input: dict[str, Any], summary: str
) -> None:
    one, two = service.commit("one"), service.commit("two", files, **input)
    [preview] = await service.plugin.preview(two.preview_context(running=one.source))
    assert preview.summary == summary
    [first] = await service.plugin.preview(one.preview_context(running=None))
    assert all(line.startswith("+ ") for line in first.details.splitlines())
    number = len(first.details.splitlines())
    assert first.summary == f"{number} file{'' if number == 1 else 's'} will be deployed"
