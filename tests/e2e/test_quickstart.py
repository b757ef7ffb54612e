# SPDX-License-Identifier: Apache-2.0
"""The walking skeleton: one command, a commit, a finished deployment, seen in the console."""

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from servers.programs import OUR_PIPECD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


async def test_a_commit_is_deployed_by_itself_and_seen(quickstart: Any, tmp_path: Path) -> None:
    async with quickstart(tmp_path / "data") as qs:
        sha = qs.commit({"hello/greeting.txt": "Good evening\n"}, "Greet in the evening")
        deployment = await qs.finished(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        assert [stage.name for stage in deployment.stages] == ["SCRIPT_RUN"]
        lines = [line for log in (await qs.logs(deployment)).values() for line in log]
        assert any("Good evening" in line for line in lines)
        assert any(sha in line for line in lines)

        async with httpx2.AsyncClient(
            base_url=f"http://{qs.address}", follow_redirects=True
        ) as http:
            login = {"project": "quickstart", "username": "admin", "password": qs.password}
            await http.get("/login?project=quickstart")
            await http.post(
                "/auth/login/static", data=login, headers={"Origin": f"http://{qs.address}"}
            )
            assert "hello" in (await http.get("/applications")).text
            page = (await http.get(f"/deployments/{deployment.id}")).text
            assert "SCRIPT_RUN" in page
            assert "Good evening" in page


async def test_it_goes_on_where_it_was_after_ctrl_c(quickstart: Any, tmp_path: Path) -> None:
    async with quickstart(tmp_path / "data") as qs:
        first = await qs.finished(head_of(qs.repository))
        assert await qs.stop(signal.SIGINT) == 0
        assert "Traceback" not in "".join(qs.shown)
        sha = qs.commit({"hello/greeting.txt": "while you slept\n"})
    async with quickstart(tmp_path / "data") as qs:
        second = await qs.finished(sha)
        assert DeploymentStatus(second.status) is DeploymentStatus.SUCCESS
        assert (await qs.finished(first.trigger.commit.hash)).id == first.id


async def test_a_kill_loses_nothing(quickstart: Any, tmp_path: Path) -> None:
    async with quickstart(tmp_path / "data") as qs:
        sha = qs.commit({"hello/greeting.txt": "short life\n"})
        await qs.stop(signal.SIGKILL)
    async with quickstart(tmp_path / "data") as qs:
        deployment = await qs.finished(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS


async def test_a_broken_config_is_shown_and_a_mended_one_deployed(
    quickstart: Any, tmp_path: Path
) -> None:
    async with quickstart(tmp_path / "data") as qs:
        await qs.finished(head_of(qs.repository))
        good = (qs.repository / "hello/app.pipecd.yaml").read_text()
        qs.commit({"hello/app.pipecd.yaml": good.replace("spec:", "spec:\n  timeout: soon")})
        broken = await qs.application(
            lambda a: SyncStatus(a.sync_state.status) is SyncStatus.INVALID_CONFIG
        )
        assert "app.pipecd.yaml:4:12: spec.timeout" in broken.sync_state.reason
        sha = qs.commit({"hello/app.pipecd.yaml": good, "hello/greeting.txt": "mended\n"})
        deployment = await qs.finished(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        await qs.application(
            lambda a: SyncStatus(a.sync_state.status) is not SyncStatus.INVALID_CONFIG
        )


async def test_a_failing_script_is_a_failed_deployment_with_its_reason(
    quickstart: Any, tmp_path: Path
) -> None:
    async with quickstart(tmp_path / "data") as qs:
        config = (qs.repository / "hello/app.pipecd.yaml").read_text()
        failing = config.replace("cat greeting.txt", "cat no-such-file")
        deployment = await qs.finished(qs.commit({"hello/app.pipecd.yaml": failing}))
        assert DeploymentStatus(deployment.status) is DeploymentStatus.FAILURE
        assert deployment.status_reason
        lines = [line for log in (await qs.logs(deployment)).values() for line in log]
        assert any("no-such-file" in line for line in lines)


async def test_a_stage_that_no_plugin_knows_fails_with_the_known_ones_named(
    quickstart: Any, tmp_path: Path
) -> None:
    async with quickstart(tmp_path / "data") as qs:
        config = (qs.repository / "hello/app.pipecd.yaml").read_text()
        misspelt = config.replace("SCRIPT_RUN", "SCRIPT_RUM")
        deployment = await qs.finished(qs.commit({"hello/app.pipecd.yaml": misspelt}))
        assert DeploymentStatus(deployment.status) is DeploymentStatus.FAILURE
        assert "SCRIPT_RUM" in deployment.status_reason
        assert "SCRIPT_RUN" in deployment.status_reason


async def test_a_repository_that_went_away_is_found_again(quickstart: Any, tmp_path: Path) -> None:
    async with quickstart(tmp_path / "data") as qs:
        await qs.finished(head_of(qs.repository))
        away = tmp_path / "away"
        qs.repository.rename(away)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await qs.process.wait()
        away.rename(qs.repository)
        sha = qs.commit({"hello/greeting.txt": "back again\n"})
        deployment = await qs.finished(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        assert "Traceback" not in "".join(qs.shown)


async def test_nothing_listens_beyond_loopback(quickstart: Any, tmp_path: Path) -> None:
    async with quickstart(tmp_path / "data") as qs:
        addresses = listening_addresses(qs.process.pid)
        assert addresses
        assert {a for a in addresses if a not in ("0100007F", "0" * 24 + "01000000")} == set()


async def test_a_second_quickstart_on_the_directory_is_refused(
    quickstart: Any, tmp_path: Path
) -> None:
    async with quickstart(tmp_path / "data"):
        ended = ended_with("--data-dir", str(tmp_path / "data"), "--port", "0")
        assert ended == (1, "another quickstart", "--data-dir")


def test_a_busy_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = ended_with("--data-dir", str(tmp_path / "data"), "--port", port)
    assert ended == (1, f"port {port} is in use", "--port")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = ended_with("--data-dir", str(tmp_path / "file" / "data"), "--port", "0")
    assert ended == (1, "cannot write to", "--data-dir")


def test_a_damaged_database_is_told_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "pipecd.db").write_bytes(b"this is no database" * 100)
    done = run_quickstart("--data-dir", str(data), "--port", "0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "pipecd.db" in done.stderr
    assert (data / "pipecd.db").read_bytes() == b"this is no database" * 100


def run_quickstart(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [OUR_PIPECD, "quickstart", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
    )


def ended_with(*arguments: str) -> tuple[int, str, str]:
    """The exit code, the sentence up to where it names things, and the flag that it offers."""
    done = run_quickstart(*arguments)
    assert "Traceback" not in done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    known = ("another quickstart", "cannot write to")
    port = arguments[-1]
    start = next((k for k in (*known, f"port {port} is in use") if k in sentence), sentence)
    flag = next((f for f in ("--data-dir", "--port") if f in sentence), sentence)
    return done.returncode, start, flag


def head_of(repository: Path) -> str:
    git = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def listening_addresses(pid: int) -> set[str]:
    """The local addresses, in the kernel's hex, on which the process listens."""
    inodes: set[str] = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        # A file may be closed in the meantime.
        with suppress(FileNotFoundError):
            target = str(fd.readlink())
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.add(columns[1].rsplit(":", 1)[0])
    return found
