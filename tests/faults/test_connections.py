# SPDX-License-Identifier: Apache-2.0
"""Silent connections are detected, and everything recovers within seconds of the network."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from faults.conftest import OpenInstallation
from faults.installation import FaultyInstallation, open_installation
from faults.network import LinkState
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.ids import new_id
from pipecd.proto.model import command_pb2
from pipecd.proto.model.command_pb2 import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# What a fault may cost; a deployment itself takes about a second of it.
RECOVERY_SECONDS = 10.0

RecordProperty = Callable[[str, object], None]
T = TypeVar("T")


class Stopwatch:
    """Measures how long recoveries take and records it in the report of the test."""

    def __init__(self, installed: FaultyInstallation, record: RecordProperty) -> None:
        self._installed, self._record = installed, record

    async def measure(self, read: Callable[[], Awaitable[T | None]], what: str) -> T:
        started = time.monotonic()
        value = await self._installed.eventually(read, within=RECOVERY_SECONDS + 2, what=what)
        seconds = time.monotonic() - started
        self._record("seconds", round(seconds, 1))
        assert seconds < RECOVERY_SECONDS
        return value

    async def push(self) -> None:
        """Pushes and waits for the deployment."""
        head = self._installed.push("cart")
        await self.measure(lambda: self._installed.completed(head), "the push was not deployed")

    async def command(self, id_: str, replica: int = 0) -> None:
        """Waits until a command is handled."""
        await self.measure(
            lambda: self._installed.is_handled(id_, replica), "the command was not handled"
        )


async def start_and_deploy(installed: FaultyInstallation) -> None:
    head = installed.push("cart")
    await installed.start_piped()
    await installed.eventually(lambda: installed.completed(head))


@pytest.mark.parametrize("state", [LinkState.SILENT, LinkState.HALF_OPEN])
async def test_existing_connections_fall_silent_while_new_ones_work(
    tmp_path: Path, state: LinkState, record_property: RecordProperty
) -> None:
    async with open_installation(tmp_path) as installed:
        stopwatch = Stopwatch(installed, record_property)
        await start_and_deploy(installed)
        # A second time as well: piped is a little more patient after a replacement.
        for _ in range(2):
            assert installed.front.silence(state) > 0
            await stopwatch.push()
        assert installed.pipeds[0].log.count("connection fell silent, reconnecting") >= 2


@pytest.mark.parametrize("state", [LinkState.SILENT, LinkState.HALF_OPEN])
async def test_the_connection_of_an_idle_piped_falls_silent(
    tmp_path: Path, state: LinkState, record_property: RecordProperty
) -> None:
    async with open_installation(tmp_path) as installed:
        await start_and_deploy(installed)
        installed.front.silence(state)
        # Nothing but the missing heartbeat tells piped that it misses the command.
        command = await installed.sync("cart")
        await Stopwatch(installed, record_property).command(command)


async def test_connections_fall_silent_at_a_control_plane_without_wakeups(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    async with open_installation(tmp_path) as installed:
        installed.calls.unimplemented.add("WatchWakeups")
        stopwatch = Stopwatch(installed, record_property)
        await start_and_deploy(installed)
        installed.front.silence()
        await stopwatch.push()
        installed.front.silence()
        await stopwatch.command(await installed.sync("cart"))


async def test_connections_fall_silent_amid_a_stage(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    async with open_installation(tmp_path) as installed:
        await start_and_deploy(installed)
        head = installed.push("cart", seconds=2)
        await installed.eventually(lambda: installed.running(head))
        installed.front.silence()
        completed = await Stopwatch(installed, record_property).measure(
            lambda: installed.completed(head), "the deployment was not completed"
        )
        assert DeploymentStatus(completed.status) is DeploymentStatus.SUCCESS
        assert [run.commit for run in installed.runs()].count(head) == 1


async def test_a_piped_restarted_amid_an_outage_recovers_when_it_ends(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    async with open_installation(tmp_path) as installed:
        stopwatch = Stopwatch(installed, record_property)
        await start_and_deploy(installed)
        piped = installed.pipeds[0]
        installed.front.cut()
        await piped.kill()
        await piped.start()
        await asyncio.sleep(25)
        installed.front.heal()
        await stopwatch.push()
        # The wake-up stream is back too: a command needs no poll.
        await stopwatch.command(await installed.sync("cart"))


@pytest.mark.parametrize("is_restarted", [False, True], ids=["piped runs", "piped restarts"])
async def test_piped_recovers_from_an_outage_behind_a_proxy_that_answers(
    tmp_path: Path, record_property: RecordProperty, is_restarted: bool
) -> None:
    async with open_installation(tmp_path) as installed:
        stopwatch = Stopwatch(installed, record_property)
        await start_and_deploy(installed)
        await installed.replicas[0].kill()
        if is_restarted:
            await installed.pipeds[0].kill()
            await installed.pipeds[0].start()
        # Long enough for every backoff to be longer than the recovery may take.
        await asyncio.sleep(30)
        head = installed.push("cart")
        await installed.start_replica()
        await stopwatch.measure(lambda: installed.completed(head), "the push was not deployed")
        await stopwatch.command(await installed.sync("cart"))


async def test_a_command_reaches_its_piped_although_its_signal_was_lost(
    open_replicas: OpenInstallation, tmp_path: Path, record_property: RecordProperty
) -> None:
    async with open_replicas() as installed:
        await start_and_deploy(installed)
        # As a replica leaves it that dies after it has stored and acknowledged the command.
        async with open_datastore(installed.datastore) as database:
            files = await LocalFiles.open(tmp_path / "data" / "files")
            command = Command(
                id=new_id(),
                piped_id=installed.piped_id,
                application_id=installed.applications["cart"],
                project_id="shop",
                commander="tests",
                type=command_pb2.Command.SYNC_APPLICATION,
                sync_application=Command.SyncApplication(
                    application_id=installed.applications["cart"]
                ),
            )
            await create_stores(database, files, MemoryCache()).commands.add(command)
        await Stopwatch(installed, record_property).command(command.id)


async def test_a_command_reaches_its_piped_although_the_replica_died_that_took_it(
    open_replicas: OpenInstallation, record_property: RecordProperty
) -> None:
    async with open_replicas() as installed:
        stopwatch = Stopwatch(installed, record_property)
        await start_and_deploy(installed)
        for turn in range(6):
            replica = turn % 2
            command = await installed.sync("cart", replica)
            await installed.replicas[replica].kill()
            await stopwatch.command(command, 1 - replica)
            await installed.start_replica(replica)
            await asyncio.sleep(1)


async def test_a_cancel_reaches_its_piped_although_the_replica_died_that_took_it(
    open_replicas: OpenInstallation, record_property: RecordProperty
) -> None:
    async with open_replicas() as installed:
        stopwatch = Stopwatch(installed, record_property)
        await start_and_deploy(installed)
        for replica in range(2):
            head = installed.push("cart", seconds=60)
            await installed.eventually(lambda head=head: installed.running(head))
            deployment = await installed.eventually(lambda head=head: installed.deployment_of(head))
            await installed.cancel(deployment.id, replica)
            await installed.replicas[replica].kill()
            cancelled = await stopwatch.measure(
                lambda head=head, other=1 - replica: installed.completed(head, other),
                "the deployment was not cancelled",
            )
            assert DeploymentStatus(cancelled.status) is DeploymentStatus.CANCELLED
            await installed.start_replica(replica)


APPROVAL = "      - name: WAIT_APPROVAL\n        with: {timeout: 5m, approvers: [root]}\n"


async def test_an_approval_reaches_its_piped_although_the_replica_died_that_took_it(
    open_replicas: OpenInstallation, record_property: RecordProperty
) -> None:
    async with open_replicas() as installed:
        stopwatch = Stopwatch(installed, record_property)
        await start_and_deploy(installed)
        for replica in range(2):
            head = installed.push("cart", more=APPROVAL)

            async def waiting_stage(head: str = head) -> tuple[str, str] | None:
                if (deployment := await installed.deployment_of(head)) is None:
                    return None
                running = (
                    (deployment.id, stage.id)
                    for stage in deployment.stages
                    if stage.name == "WAIT_APPROVAL"
                    and StageStatus(stage.status) is StageStatus.RUNNING
                )
                return next(running, None)

            deployment, stage = await installed.eventually(waiting_stage)
            await installed.approve(deployment, stage, replica)
            await installed.replicas[replica].kill()
            approved = await stopwatch.measure(
                lambda head=head, other=1 - replica: installed.completed(head, other),
                "the stage was not approved",
            )
            assert DeploymentStatus(approved.status) is DeploymentStatus.SUCCESS
            await installed.start_replica(replica)
