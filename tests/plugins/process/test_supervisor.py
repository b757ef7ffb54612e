# SPDX-License-Identifier: Apache-2.0
"""The supervisor as a program: it hands over, ends everything, and keeps logs in limits."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pipecd.plugins.process import applications, logs
from pipecd.plugins.process.applications import Supervisor
from pipecd.plugins.process.client import SupervisorClient
from pipecd.plugins.process.control import serve_control
from pipecd.plugins.process.desired import (
    DesiredApplication,
    DesiredVariant,
    HealthProbe,
    Listener,
    Program,
)
from pipecd.plugins.process.instance import (
    ApplicationStatus,
    Instance,
    Phase,
    VariantTraffic,
)
from pipecd.plugins.process.json_codec import from_json, to_json
from pipecd.plugins.process.plugin import ProcessPlugin
from pipecd.plugins.process.programs import exit_text, find_programs
from pipecd.plugins.process.releases import copy_release, read_tree
from pipecd.plugins.process.state_file import (
    StoredApplication,
    StoredState,
    SupervisorDirectory,
)
from pipecd.plugins.process.status_page import metrics, verdict
from pipecd.plugins.process.supervisor import take_over
from pipecd.sdk import Health, StageStatus, StartContext
from plugins.process.testbed import Service, load
from servers.polling import eventually
from servers.server import free_ports


async def test_another_supervisor_takes_over_without_a_failed_request(service: Service) -> None:
    bench = service.commit("one", replicas=2)
    assert (await bench.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    before, first = await service.pids(), service.client.directory.lock_file.read_text()
    async with load(service.port, clients=4) as counted:
        await asyncio.sleep(0.2)
        await service.client._start("--take-over")
        assert service.client.directory.lock_file.read_text() != first
        answered = counted.answers.get((200, "one"), 0)
        await eventually(lambda: counted.answers.get((200, "one"), 0) >= answered + 50, 30)
    assert counted.failed == {}
    assert await service.pids() == before
    assert (await service.status()).routed == {"primary": 100}


async def test_the_supervisor_does_not_load_openssl(service: Service) -> None:
    assert (await service.commit("one").run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    pid = int(service.client.directory.lock_file.read_text())
    mapped = await asyncio.to_thread(Path(f"/proc/{pid}/maps").read_text)
    assert "python" in mapped
    assert not [line for line in mapped.splitlines() if "libssl" in line or "libcrypto" in line]


async def test_a_supervisor_with_other_code_is_replaced_by_a_new_plugin_only(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await service.commit("one").run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    before, first = await service.pids(), service.client.directory.lock_file.read_text()
    monkeypatch.setattr("pipecd.plugins.process.client.code_version", lambda: "newer")
    assert (await service.commit("one").run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    assert service.client.directory.lock_file.read_text() == first
    async with AsyncExitStack() as lifetime:
        upgraded = ProcessPlugin()
        await upgraded.prepare(StartContext(service.entry, service.host, lifetime))
        await eventually(lambda: service.is_routed_by_another_than(int(first)), 30)
        assert await service.pids() == before


@asynccontextmanager
async def controlled_supervisor(path: Path) -> AsyncGenerator[Supervisor]:
    """Runs a supervisor in this process that answers on its socket."""
    directory = SupervisorDirectory(path)
    directory.create()
    directory.lock_file.touch()
    supervisor = Supervisor(directory)
    supervisor.start({})
    try:
        async with serve_control(supervisor, directory.listen()):
            yield supervisor
    finally:
        await supervisor.close()
        await supervisor.router.close(0)


async def test_many_listeners_are_handed_over(tmp_path: Path) -> None:
    """The kernel passes at most 253 descriptors in a message."""
    async with controlled_supervisor(tmp_path) as supervisor:
        ports = {
            f"app@{number}": await supervisor.router.listen(f"app@{number}", "127.0.0.1", 0)
            for number in range(300)
        }
        taken = await asyncio.to_thread(take_over, supervisor.directory)
        assert {name: sock.getsockname()[1] for name, sock in taken.items()} == ports
        assert supervisor.has_handed_over
        for sock in taken.values():
            sock.close()


async def test_a_supervisor_whose_sockets_nobody_takes_goes_on(tmp_path: Path) -> None:
    async with controlled_supervisor(tmp_path) as supervisor:
        await supervisor.router.listen("app@1", "127.0.0.1", 0)
        with supervisor.directory.connect() as connection:
            connection.sendall(b'{"request": "hand-over"}\n')
        client = SupervisorClient(supervisor.directory)
        await client.apply(DesiredApplication("1", "shop"))
        assert not supervisor.has_handed_over
        assert not supervisor.ended.is_set()


async def test_a_shut_down_ends_everything_and_the_next_start_continues(
    service: Service,
) -> None:
    bench = service.commit("one", replicas=2)
    assert (await bench.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    await service.plugin._supervisors.close()
    await service.client.shut_down()
    assert list(find_programs(str(service.client.directory.path))) == []

    async def has_ended() -> bool:
        return not await service.client.is_running()

    await eventually(has_ended, 30)
    await service.client.ensure()
    await eventually(lambda: service.is_routed_by_another_than(0), 30)
    assert await service.get() == (200, "one")


async def test_an_application_can_be_removed(service: Service) -> None:
    assert (await service.commit("one").run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    directory = str(service.client.directory.path)
    command = [sys.executable, "-m", "pipecd.plugins.process.supervisor", directory, "--remove"]

    async def remove(name: str) -> int:
        done = await asyncio.to_thread(subprocess.run, [*command, name], check=False)
        return done.returncode

    assert await remove("unknown") == 1
    assert await remove("tested") == 0

    async def is_gone() -> bool:
        return await service.client.status("app-1") is None

    await eventually(is_gone, 30)
    assert list(find_programs(directory)) == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        pytest.param("--help", 2, "DIRECTORY --remove APPLICATION", id="a word that is no directory"),
        pytest.param(". --remove", 2, "DIRECTORY --remove APPLICATION", id="no application"),
        pytest.param("programs --remove shop", 1, "no supervisor runs in", id="no supervisor"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_command_starts_no_supervisor(
    words: str, code: int, text: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipecd.plugins.process.supervisor", *words.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, text in done.stderr) == (code, True)
    assert list(tmp_path.iterdir()) == []


async def test_a_supervisor_whose_directory_is_removed_ends_with_its_programs(
    service: Service,
) -> None:
    assert (await service.commit("one").run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    await service.plugin._supervisors.close()
    directory = service.client.directory
    supervisor = Path("/proc", directory.lock_file.read_text().strip())
    await asyncio.to_thread(shutil.rmtree, directory.path)
    await eventually(lambda: not supervisor.exists(), 30)
    assert list(find_programs(str(directory.path))) == []


async def test_a_file_that_somebody_changes_in_a_release_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_WATCH_SECONDS", "_SAMPLE_SECONDS", "_REPORT_SECONDS"):
        monkeypatch.setattr(applications, name, 0.05)
    source = tmp_path / "source"
    source.mkdir()
    (source / "data").write_text("one")
    release = copy_release(
        read_tree(source, source, config="app.pipecd.yaml"), "c0ffee", tmp_path / "releases"
    ).path
    program = Program(str(release), "c0ffee", "d", "sleep", args=("600",))
    variant = DesiredVariant(program, health=HealthProbe(interval=0.05), inherited=dict(os.environ))
    directory = SupervisorDirectory(tmp_path / "target")
    directory.create()
    directory.lock_file.touch()
    supervisor = Supervisor(directory)
    supervisor.start({})
    try:
        await supervisor.apply(DesiredApplication("1", "shop", {"primary": variant}))
        await eventually(lambda: supervisor.statuses()[0].instances[0].usage.processes == 1, 30)
        assert supervisor.statuses()[0].changed_files == {}
        (release / "data").write_text("two")
        await eventually(lambda: supervisor.statuses()[0].changed_files, 30)
        assert supervisor.statuses()[0].changed_files == {str(release): ("data",)}
    finally:
        await supervisor.shut_down()


async def test_the_state_survives_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "state.json").write_text("{")
    command = [sys.executable, "-m", "pipecd.plugins.process.supervisor", str(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "state.json is damaged" in done.stderr


def test_values_survive_json() -> None:
    program = Program("/r", "c", "d", "serve", args=("a",), env={"A": "b"})
    desired = DesiredApplication(
        "1", "shop", {"primary": DesiredVariant(program, 2)}, {"primary": 1}
    )
    instance = Instance("primary", program.identity, 0, Phase.HEALTHY, 1.5, pid=7)
    stored = StoredApplication(
        desired, (instance,), {"primary": "x"}, desired.variants, Listener("127.0.0.1", 80)
    )
    state = StoredState((stored,), 9)
    text = json.dumps(to_json(state))
    assert from_json(StoredState, json.loads(text)) == state
    # Another version may know more, and less.
    newer = {**json.loads(text), "unknown": 1}
    del newer["status_port"]
    assert from_json(StoredState, newer).applications == state.applications
    with pytest.raises(TypeError):
        from_json(StoredState, {"status_port": "x"})


def test_a_large_log_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "primary-0.log"
    for number in range(4):
        log.write_text(f"{number}" * 100)
        assert logs.rotate(log, max_size=50, kept=2)
    assert (log.read_text(), log.with_name("primary-0.log.1").read_text()[:1]) == ("", "3")
    assert log.with_name("primary-0.log.2").read_text()[:1] == "2"
    assert not log.with_name("primary-0.log.3").exists()
    assert log.with_name("primary-0.log.1").stat().st_mode & 0o777 == 0o600
    log.write_text("short")
    assert not logs.rotate(log, max_size=50, kept=2)


def test_the_last_lines_are_those_of_the_last_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\nnew 1\nnew 2\n")
    assert logs.last_lines(log, 4, 10) == ["new 1", "new 2"]
    assert logs.last_lines(log, 4, 1) == ["new 2"]
    assert logs.last_lines(log, 1000, 1) == ["new 2"]
    assert logs.last_lines(tmp_path / "missing", 0, 1) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exited with code 0"), (3, "exited with code 3"), (-9, "was ended by SIGKILL")],
)
def test_how_a_program_ended(code: int, text: str) -> None:
    assert exit_text(code) == text


NOW = 10_000.0


def status(
    phase: Phase, requests: int, errors: int, restarts: int = 0, seconds: float = 10
) -> ApplicationStatus:
    program = Program("/r", "c0ffee", "d", "serve")
    desired = DesiredApplication("1", "shop", {"canary": DesiredVariant(program)})
    instance = Instance(
        "canary",
        program.identity,
        0,
        phase,
        0,
        commit="c0ffee",
        started_at=NOW - seconds,
        restarts=restarts,
        exit="exited",
    )
    traffic = {"canary": VariantTraffic(requests, errors, requests, errors)}
    return ApplicationStatus(desired, (instance,), routed={"canary": 10}, traffic=traffic)


@pytest.mark.parametrize(
    ("given", "is_good", "reason"),
    [
        pytest.param(status(Phase.HEALTHY, 100, 5), True, "as good as it must be", id="few errors"),
        pytest.param(status(Phase.HEALTHY, 100, 6), False, "6 of 100 requests failed", id="too many"),
        pytest.param(status(Phase.HEALTHY, 9, 9), True, "9 requests are too few to judge, at least 10", id="too few"),
        pytest.param(status(Phase.STARTING, 100, 0), False, "no instance of canary is healthy", id="unhealthy"),
        pytest.param(status(Phase.HEALTHY, 100, 0, 1), False, "an instance of canary was restarted: exited", id="restarted"),
        pytest.param(status(Phase.HEALTHY, 100, 0, 1, seconds=3601), True, "as good as it must be", id="restarted long ago"),
    ],
)  # fmt: skip
def test_the_verdict_on_a_canary(given: ApplicationStatus, is_good: bool, reason: str) -> None:
    decided, facts = verdict(given, "canary", NOW, max_error_rate=0.05, min_requests=10)
    assert (decided, facts["reason"]) == (is_good, reason)


def test_metrics_for_prometheus() -> None:
    lines = list(metrics([status(Phase.HEALTHY, 7, 1)]))
    assert 'pipecd_process_requests_total{application="shop",variant="canary"} 7' in lines
    assert "# TYPE pipecd_process_requests_total counter" in lines
    assert any(line.startswith("pipecd_process_memory_bytes{") for line in lines)


async def test_a_version_that_is_rolled_out_again_is_judged_anew(service: Service) -> None:
    one = service.commit("one")
    assert (await one.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    bad = service.commit("bad", running=one, env={"STATUS": "500 Broken"})

    async def roll_out_canary() -> VariantTraffic:
        assert (await bad.run("PROCESS_CANARY_ROLLOUT")).status is StageStatus.SUCCESS
        routed = await bad.run("PROCESS_TRAFFIC_ROUTING", {"canary": 100})
        assert routed.status is StageStatus.SUCCESS
        return (await service.status()).traffic["canary"]

    await roll_out_canary()
    assert (await service.get())[0] == 500
    assert (await service.status()).traffic["canary"].errors == 1
    assert (await bad.run("PROCESS_ROLLBACK", is_rollback=True)).status is StageStatus.SUCCESS
    again = await roll_out_canary()
    assert (again.errors, again.all_errors) == (0, 1)


async def test_the_status_page_answers_on_its_port(service: Service) -> None:
    service.target = {"statusPort": free_ports(1)[0]}
    bench = service.commit("one")
    assert (await bench.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    router_port, service.port = service.port, service.target["statusPort"]
    code, body = await service.get("/applications/tested/primary?max-error-rate=0.1")
    assert (code, json.loads(body)["healthy"]) == (200, 1)
    assert (await service.get("/applications/tested/canary"))[0] == 503
    assert (await service.get("/applications/other/canary"))[0] == 404
    assert (await service.get("/metrics"))[0] == 200
    service.port = router_port


async def test_a_status_port_in_use_is_in_the_log_and_the_live_state(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        service.target = {"statusPort": port}
        bench = service.commit("one")
        assert (await bench.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
        error = (
            f"the status page cannot listen on port {port} of 127.0.0.1: Address already in use; "
            "stop the program that uses it, or choose another statusPort"
        )
        assert f"Error rates cannot be read: {error}" in service.host.lines
        state = await service.plugin.live_state(bench.live_context())
        [page] = [resource for resource in state.resources if resource.kind == "StatusPage"]
        assert (page.health, page.health_text) == (Health.UNHEALTHY, error)

    async def is_served() -> bool:
        status_page = (await service.status()).status_page
        return status_page is not None and not status_page.error

    await eventually(is_served, 30)
