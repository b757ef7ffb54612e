# SPDX-License-Identifier: Apache-2.0
"""The stages with real programs, a real supervisor and a real router."""

import asyncio
import os
import pwd
import signal
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.process.logs import last_lines
from pipecd.plugins.process.plugin import ProcessPlugin
from pipecd.plugins.process.programs import own_user
from pipecd.plugins.process.releases import readers_of_releases
from pipecd.sdk import StageResult, StageStatus
from pipecd.sdk.testing import StageBench
from plugins.process.testbed import SERVICE, Service, load
from servers.polling import eventually

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE


async def run(bench: StageBench, stage: str, **options: Any) -> StageResult:
    result = await bench.run(stage, options)
    assert result.status is SUCCESS, result.message
    return result


async def roll_back(bench: StageBench) -> StageResult:
    result = await bench.run("PROCESS_ROLLBACK", is_rollback=True)
    assert result.status is SUCCESS, result.message
    return result


async def test_a_sync_starts_the_program_and_serves_it(service: Service) -> None:
    done = await run(service.commit("one", replicas=2), "PROCESS_SYNC")
    assert done.message == f"Commit one runs at 127.0.0.1:{service.port}"
    assert await service.get() == (200, "one")
    assert len(await service.pids()) == 2
    assert "2 of 2 instances of primary are healthy" in service.host.lines


async def test_a_pipeline_with_a_canary_fails_no_request(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    two = service.commit("two", {"new": "file"}, running=one)
    async with load(service.port) as counted:
        await run(two, "PROCESS_CANARY_ROLLOUT", replicas=1)
        assert (200, "two") not in counted.answers
        await run(two, "PROCESS_TRAFFIC_ROUTING", canary=50)
        counted.answers.clear()
        await eventually(lambda: sum(counted.answers.values()) >= 100, 30)
        share = counted.answers[200, "two"] / sum(counted.answers.values())
        assert 0.4 < share < 0.6
        await run(two, "PROCESS_PRIMARY_ROLLOUT")
        await run(two, "PROCESS_TRAFFIC_ROUTING", primary=100)
        await run(two, "PROCESS_CANARY_CLEAN")
        counted.answers.clear()
        await asyncio.sleep(0.1)
        assert set(counted.answers) == {(200, "two")}
        await roll_back(two)
        assert counted.failed == {}
    assert await service.get() == (200, "one")
    assert (await service.status()).of("canary") == []


async def test_more_replicas_restart_no_program(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    [before] = await service.pids()
    async with load(service.port) as counted:
        await run(service.commit("two", running=one, replicas=2), "PROCESS_SYNC")
    assert counted.failed == {}
    first, second = await service.pids()
    assert (first, second != before) == (before, True)


async def test_a_failing_canary_is_rolled_back_without_other_failures(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    before = await service.pids()
    bad = service.commit("bad", running=one, env={"STATUS": "500 Broken"})
    async with load(service.port) as counted:
        await run(bad, "PROCESS_CANARY_ROLLOUT")
        await run(bad, "PROCESS_TRAFFIC_ROUTING", canary=20)
        await eventually(lambda: (500, "bad") in counted.answers, 30)
        await roll_back(bad)
        assert set(counted.failed) == {(500, "bad")}
    assert await service.pids() == before


BAD_PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "a program that exits at once": (
        {"args": ["-c", "print('no database'); raise SystemExit(3)"]},
        "primary instance 0 exited with code 3 (no database); the program must keep running",
    ),
    "a command that is not installed": (
        {"command": "no-such-program"},
        "primary instance 0 cannot start: 'no-such-program' does not exist in PATH; correct the command",
    ),
    "a command that is not in the release": (
        {"command": "./serve"},
        "'./serve' does not exist; correct the command",
    ),
    "a file that is not executable": (
        {"command": "./server.py"},
        "'./server.py' may not be executed; make it executable (chmod +x)",
    ),
    "a working directory that does not exist": (
        {"workingDirectory": "nowhere"},
        "the working directory does not exist; correct workingDirectory",
    ),
    "a health check that hangs": (
        {
            "args": ["-S", "-c", "import os, socket, time; s = socket.create_server(('127.0.0.1', int(os.environ['PORT']))); time.sleep(60)"],
            "healthCheck": {"path": "/healthz", "timeout": "4s"},
        },
        "primary instance 0 was not healthy for 4s: GET /healthz on port",
    ),
    "a program that listens elsewhere": (
        {"args": ["-c", "import time; time.sleep(60)"], "healthCheck": {"timeout": "1s"}},
        "which PORT in its environment names",
    ),
    "an unknown user": (
        {"limits": {"user": "nobody-knows"}},
        "the user 'nobody-knows' does not exist; create it, or correct limits.user",
    ),
    "too much memory": (
        {"args": ["-c", "import time; x = b'x' * 100_000_000; time.sleep(60)"], "port": 0, "limits": {"memory": "50Mi"}, "healthCheck": {"interval": "4s"}},
        "of memory, 50 MiB allowed by limits.memory, and was ended by SIGKILL",
    ),
    "too many processes": (
        {"args": ["-c", "import subprocess as s, time; x = [s.Popen(['sleep', '60']) for _ in range(4)]; time.sleep(60)"], "port": 0, "limits": {"processes": 3}, "healthCheck": {"interval": "4s"}},
        "processes, 3 allowed by limits.processes, and was ended by SIGKILL",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("input", "cause"), BAD_PROGRAMS.values(), ids=BAD_PROGRAMS)
async def test_a_stage_fails_with_the_cause_and_the_old_version_serves(
    service: Service, input: dict[str, Any], cause: str
) -> None:
    service.target = {"users": [own_user(), "nobody-knows"]}
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    before = await service.pids()
    bad = service.commit("bad", running=one, **input)
    failed = await bad.run("PROCESS_SYNC")
    assert failed.status is FAILURE
    assert cause in failed.message
    assert input.get("port") == 0 or await service.get() == (200, "one")
    await roll_back(bad)
    assert await service.get() == (200, "one")
    assert await service.pids() == before


async def test_the_last_lines_of_the_log_are_in_the_stage_log(service: Service) -> None:
    script = "for n in range(30): print('line', n)\nraise SystemExit(1)"
    await service.commit("bad", args=["-c", script]).run("PROCESS_SYNC")
    lines = service.host.lines
    begin = lines.index("The last lines of primary-0.log:")
    assert lines[begin + 1 : begin + 21] == [f"  line {n}" for n in range(10, 30)]


async def test_a_port_that_another_program_uses(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        two = service.commit("two", running=one, port=port)
        failed = await two.run("PROCESS_SYNC")
        assert f"port {port} of 127.0.0.1 is in use by another program" in failed.message
        assert (await service.get())[0] == 200
        await roll_back(two)
    assert await service.get() == (200, "one")


async def test_a_port_of_another_application(service: Service) -> None:
    await run(service.commit("one"), "PROCESS_SYNC")
    service.application_id = "app-2"
    failed = await service.commit("two").run("PROCESS_SYNC")
    assert failed.message == (
        f"port {service.port} is the port of the application tested; choose another input.port"
    )


async def test_a_first_deployment_that_fails_leaves_nothing(service: Service) -> None:
    bad = service.commit("bad", args=["-c", "raise SystemExit(1)"])
    assert (await bad.run("PROCESS_SYNC")).status is FAILURE
    done = await roll_back(bad)
    assert done.message == "No version ran before this deployment: its programs have ended"
    assert await service.client.status("app-1") is None


async def test_an_interrupted_stage_continues(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    old, gate = await service.pids(), service.directory / "gate"
    late = (
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
        "exec(open('server.py').read())"
    )
    two = service.commit("two", running=one, args=["-c", late])
    interrupted = asyncio.ensure_future(two.run("PROCESS_SYNC"))

    async def new_pids() -> list[int]:
        pids = await service.started()
        return [] if pids == old else pids

    started = await eventually(new_pids, 30)
    interrupted.cancel()
    await asyncio.wait({interrupted})
    assert await service.get() == (200, "one")
    gate.touch()
    await run(two, "PROCESS_SYNC")
    assert await service.get() == (200, "two")
    assert await service.pids() == started


async def test_an_old_instance_that_crashes_during_a_rollout_is_restarted(
    service: Service,
) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    [old] = await service.pids()
    hangs: dict[str, Any] = {
        "args": ["-c", "import time; time.sleep(600)"],
        "healthCheck": {"timeout": "60s"},
    }
    two = service.commit("two", running=one, **hangs)
    rolling_out = asyncio.ensure_future(two.run("PROCESS_SYNC"))
    await eventually(service.started, 30)
    os.kill(old, signal.SIGKILL)

    async def serves_again() -> bool:
        with suppress(OSError):
            return await service.get() == (200, "one")
        return False

    await eventually(lambda: not Path(f"/proc/{old}").exists(), 30)
    await eventually(serves_again, 30)
    assert not rolling_out.done()
    rolling_out.cancel()
    await asyncio.wait({rolling_out})
    await roll_back(two)
    assert old not in await service.pids()


async def test_what_cannot_be_stored_is_not_run(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    # Nothing can be written in the place of the next state.
    obstacle = service.client.directory.state_file.with_name("state.json.new")

    def is_made() -> bool:
        # The supervisor may be storing its state, and then it has a file there.
        with suppress(FileExistsError):
            obstacle.mkdir()
        return obstacle.is_dir()

    await eventually(is_made)
    two = service.commit("two", {"new": "file"}, running=one)
    failed = await two.run("PROCESS_SYNC")
    assert failed.status is FAILURE
    assert "what shall run cannot be stored" in failed.message
    assert await service.get() == (200, "one")
    assert [
        variant.program.commit for variant in (await service.status()).desired.variants.values()
    ] == ["one"]
    obstacle.rmdir()
    await run(two, "PROCESS_SYNC")
    assert await service.get() == (200, "two")


async def test_programs_outlive_the_supervisor_and_are_found_again(service: Service) -> None:
    one = service.commit("one", replicas=2)
    await run(one, "PROCESS_SYNC")
    before = await service.pids()
    killed = await service.kill_supervisor()
    # The plugin notices it and starts another one.
    await eventually(lambda: service.is_routed_by_another_than(killed), 30)
    assert await service.get() == (200, "one")
    assert await service.pids() == before


async def test_a_stage_goes_on_when_the_supervisor_is_killed(service: Service) -> None:
    slow = "import time; time.sleep(1); exec(open('server.py').read())"
    running = asyncio.ensure_future(service.commit("one", args=["-c", slow]).run("PROCESS_SYNC"))
    await service.host.until(lambda: any("as primary" in line for line in service.host.lines))
    await eventually(service.started, 30)
    await service.kill_supervisor()
    result = await running
    assert result.status is SUCCESS, result.message
    assert await service.get() == (200, "one")


async def test_a_program_without_a_port(service: Service) -> None:
    bench = service.commit("one", args=["-c", "import time; time.sleep(600)"], port=0)
    done = await run(bench, "PROCESS_SYNC")
    assert done.message == "Commit one runs"
    failed = await bench.run("PROCESS_TRAFFIC_ROUTING", {"primary": 100})
    assert "the application has no port" in failed.message


async def test_connections_of_a_tcp_program_are_distributed(service: Service) -> None:
    """Its health check is a connection, and its bytes pass unchanged."""
    script = (
        "import os, socket\n"
        "server = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))\n"
        "while True:\n"
        "    with server.accept()[0] as c: c.sendall(os.environ['PIPECD_COMMIT'].encode())\n"
    )
    one = service.commit("one", args=["-c", script], protocol="TCP")
    two = service.commit("two", args=["-c", script, "new"], protocol="TCP", running=one)

    async def greeting() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        received = await reader.read()
        writer.close()
        return received.decode()

    await run(one, "PROCESS_SYNC")
    assert await greeting() == "one"
    await run(two, "PROCESS_CANARY_ROLLOUT")
    await run(two, "PROCESS_TRAFFIC_ROUTING", canary=50)
    assert {await greeting() for _ in range(4)} == {"one", "two"}
    await run(two, "PROCESS_PRIMARY_ROLLOUT")
    await run(two, "PROCESS_CANARY_CLEAN")
    assert {await greeting() for _ in range(4)} == {"two"}


async def test_traffic_cannot_go_to_a_canary_that_does_not_run(service: Service) -> None:
    one = service.commit("one")
    await run(one, "PROCESS_SYNC")
    failed = await one.run("PROCESS_TRAFFIC_ROUTING", {"canary": 10})
    assert "there is no canary to send requests to" in failed.message


async def test_a_program_has_its_own_variables_and_those_that_the_target_lists(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LISTED", "yes")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "credential-4711")
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -i key")
    service.target = {"variables": ["LISTED", "NOT_SET"]}
    script = (
        "import json, os, time; print(json.dumps(dict(os.environ)), flush=True); time.sleep(60)"
    )
    bench = service.commit("one", args=["-c", script], env={"OWN": "value"}, port=0)
    await run(bench, "PROCESS_SYNC")
    [instance] = (await service.status()).of("primary")
    log = Path(instance.log)
    assert (await asyncio.to_thread(log.stat)).st_mode & 0o777 == 0o600
    # Without a port, nothing tells whether the program has begun.
    text = await eventually(lambda: asyncio.to_thread(log.read_text), 30)
    assert '"LISTED": "yes"' in text
    assert '"PATH"' in text
    assert '"OWN": "value"' in text
    assert '"PIPECD_COMMIT": "one"' in text
    for unwanted in ("AWS_SECRET_ACCESS_KEY", "GIT_SSH_COMMAND", "NOT_SET"):
        assert unwanted not in text
    assert "credential-4711" not in service.client.directory.state_file.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start programs as another user")
async def test_a_program_runs_as_another_user(service: Service) -> None:
    input: dict[str, Any] = {"limits": {"user": "nobody"}}
    refused = await service.commit("one", **input).run("PROCESS_SYNC")
    assert "may not run programs as 'nobody'" in refused.message
    service.target = {"users": ["nobody"]}
    refused = await service.commit("one", **input).run("PROCESS_SYNC")
    assert "the user 'nobody' may not enter" in refused.message
    await service.plugin._supervisors.close()
    await service.client.shut_down()
    with tempfile.TemporaryDirectory() as directory:
        # Others may enter everything above it.
        Path(directory).chmod(0o755)  # noqa: ASYNC240
        service.directory = Path(directory)
        service.target |= {"directory": f"{directory}/target"}
        script = "echo $HOME $(cat server.py | wc -l); sleep 600"
        sleeping = service.commit("one", command="sh", args=["-c", script], port=0, **input)
        await run(sleeping, "PROCESS_SYNC")
        [pid] = await service.pids()
        nobody = pwd.getpwnam("nobody")
        assert Path(f"/proc/{pid}").stat().st_uid == nobody.pw_uid  # noqa: ASYNC240
        [instance] = (await service.status()).of("primary")
        release = await asyncio.to_thread(Path(instance.release).stat)
        assert (release.st_uid, release.st_mode & 0o777) == (0, 0o750)
        warnings = [line for line in service.host.lines if "can also be read" in line]
        assert bool(warnings) is bool(readers_of_releases("nobody"))
        [printed] = await eventually(lambda: last_lines(Path(instance.log), 0, 1), 30)
        assert printed == f"{nobody.pw_dir} {len(SERVICE.splitlines())}"
        await service.plugin._supervisors.close()
        await service.client.shut_down()


async def test_only_the_owner_can_reach_the_socket_and_the_state(service: Service) -> None:
    await run(service.commit("one"), "PROCESS_SYNC")
    directory = service.client.directory
    assert directory.control.stat().st_mode & 0o777 == 0o700
    assert directory.state_file.stat().st_mode & 0o777 == 0o600
    assert directory.socket_file.stat().st_mode & 0o777 == 0o600


async def test_old_releases_are_removed_but_the_previous_one(service: Service) -> None:
    for name in ("one", "two", "three"):
        await run(service.commit(name, {"version": name}), "PROCESS_SYNC")
    releases = service.client.directory.application("app-1") / "releases"
    assert sorted(p.name.split("-")[0] for p in releases.iterdir() if p.is_dir()) == [
        "three",
        "two",
    ]


async def test_a_killed_program_is_started_again(service: Service) -> None:
    await run(service.commit("one"), "PROCESS_SYNC")
    [pid] = await service.pids()
    os.kill(pid, signal.SIGKILL)

    async def restarted() -> bool:
        return await service.pids() not in ([pid], [0])

    await eventually(restarted, 30)
    [instance] = (await service.status()).of("primary")
    assert (instance.restarts, instance.exit) == (1, "was ended by SIGKILL")


def test_a_plugin_class_is_the_entry_point() -> None:
    from importlib.metadata import entry_points

    [entry] = entry_points(group="pipecd.plugins", name="process")
    assert entry.load() is ProcessPlugin
