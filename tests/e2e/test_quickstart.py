# SPDX-License-Identifier: Apache-2.0
"""The quickstart as a process: deployments, restarts, errors of its users."""

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.plugins.process.programs import find_programs
from pipecd.quickstart.sample_repository import create_repository
from servers.polling import eventually
from servers.programs import OUR_PIPECD
from servers.quickstart import start_quickstart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


async def test_a_commit_is_deployed_and_shown_in_the_console(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        sha = quickstart.commit({"hello/greeting.txt": "Good evening\n"}, "Greet in the evening")
        deployment = await quickstart.wait_for_completed(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        assert [stage.name for stage in deployment.stages] == ["SCRIPT_RUN"]
        lines = await quickstart.log_lines(deployment)
        assert any("Good evening" in line for line in lines)
        assert any(sha in line for line in lines)

        async with httpx2.AsyncClient(
            base_url=f"http://{quickstart.address}", follow_redirects=True
        ) as http:
            login = {"project": "quickstart", "username": "admin", "password": quickstart.password}
            await http.get("/login?project=quickstart")
            await http.post(
                "/auth/login/static", data=login, headers={"Origin": f"http://{quickstart.address}"}
            )
            assert "hello" in (await http.get("/applications")).text
            page = (await http.get(f"/deployments/{deployment.id}")).text
            assert "SCRIPT_RUN" in page
            assert "Good evening" in page


async def test_it_resumes_after_ctrl_c(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        first = await quickstart.wait_for_completed(quickstart.head())
        assert await quickstart.stop(signal.SIGINT) == 0
        assert "Traceback" not in quickstart.output
        sha = quickstart.commit({"hello/greeting.txt": "committed while stopped\n"})
    async with start_quickstart(tmp_path / "data") as quickstart:
        second = await quickstart.wait_for_completed(sha)
        assert DeploymentStatus(second.status) is DeploymentStatus.SUCCESS
        assert (await quickstart.wait_for_completed(first.trigger.commit.hash)).id == first.id


async def test_a_commit_before_a_kill_is_deployed_after_the_restart(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        sha = quickstart.commit({"hello/greeting.txt": "committed before the kill\n"})
        await quickstart.stop(signal.SIGKILL)
    async with start_quickstart(tmp_path / "data") as quickstart:
        deployment = await quickstart.wait_for_completed(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS


async def test_an_invalid_configuration_is_shown_and_a_fixed_one_is_deployed(
    tmp_path: Path,
) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        await quickstart.wait_for_completed(quickstart.head())
        good = (quickstart.repository / "hello/app.pipecd.yaml").read_text()
        quickstart.commit(
            {"hello/app.pipecd.yaml": good.replace("spec:", "spec:\n  timeout: soon")}
        )
        invalid = await quickstart.wait_for_application(
            lambda a: SyncStatus(a.sync_state.status) is SyncStatus.INVALID_CONFIG
        )
        assert "app.pipecd.yaml:4:12: spec.timeout" in invalid.sync_state.reason
        sha = quickstart.commit({"hello/app.pipecd.yaml": good, "hello/greeting.txt": "fixed\n"})
        deployment = await quickstart.wait_for_completed(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        await quickstart.wait_for_application(
            lambda a: (
                a.name == "hello"
                and SyncStatus(a.sync_state.status) is not SyncStatus.INVALID_CONFIG
            )
        )


async def test_a_failing_script_fails_the_deployment_with_a_reason(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        config = (quickstart.repository / "hello/app.pipecd.yaml").read_text()
        failing = config.replace("cat greeting.txt", "cat no-such-file")
        deployment = await quickstart.wait_for_completed(
            quickstart.commit({"hello/app.pipecd.yaml": failing})
        )
        assert DeploymentStatus(deployment.status) is DeploymentStatus.FAILURE
        assert deployment.status_reason
        lines = await quickstart.log_lines(deployment)
        assert any("no-such-file" in line for line in lines)


async def test_an_unknown_stage_fails_and_the_error_lists_the_known_stages(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        config = (quickstart.repository / "hello/app.pipecd.yaml").read_text()
        misspelt = config.replace("SCRIPT_RUN", "SCRIPT_RUM")
        deployment = await quickstart.wait_for_completed(
            quickstart.commit({"hello/app.pipecd.yaml": misspelt})
        )
        assert DeploymentStatus(deployment.status) is DeploymentStatus.FAILURE
        assert "SCRIPT_RUM" in deployment.status_reason
        assert "SCRIPT_RUN" in deployment.status_reason


async def test_it_survives_a_repository_that_is_temporarily_missing(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        await quickstart.wait_for_completed(quickstart.head())
        moved = tmp_path / "moved"
        quickstart.repository.rename(moved)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await quickstart.process.wait()
        moved.rename(quickstart.repository)
        sha = quickstart.commit({"hello/greeting.txt": "restored\n"})
        deployment = await quickstart.wait_for_completed(sha)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        assert "Traceback" not in quickstart.output


async def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data") as quickstart:
        addresses = listening_addresses(quickstart.process.pid)
        assert addresses
        assert {a for a in addresses if a not in ("0100007F", "0" * 24 + "01000000")} == set()


async def test_a_broken_service_is_rolled_back_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with start_quickstart(data) as quickstart, httpx2.AsyncClient() as http:
        first = await quickstart.wait_for_completed(quickstart.head(), "web")
        assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS
        stable = (await http.get(quickstart.service)).text
        await break_service(data)
        broken = await quickstart.wait_for_completed(quickstart.head(), "web")
        assert DeploymentStatus(broken.status) is DeploymentStatus.FAILURE
        names = {stage.name: stage.status for stage in broken.stages}
        assert StageStatus(names["ANALYSIS"]) is StageStatus.FAILURE
        assert StageStatus(names["PROCESS_ROLLBACK"]) is StageStatus.SUCCESS
        assert (await http.get(quickstart.service)).text == stable
        assert list(find_programs(str(data / "programs"))) != []
        assert await quickstart.stop(signal.SIGINT) == 0
        assert list(find_programs(str(data / "programs"))) == []
    async with start_quickstart(data) as quickstart, httpx2.AsyncClient() as http:

        async def is_served() -> bool:
            with suppress(httpx2.HTTPError):
                return (await http.get(quickstart.service)).text == stable
            return False

        await eventually(is_served, 60)


async def break_service(data: Path) -> None:
    command = [OUR_PIPECD, "quickstart", "--break", "--data-dir", str(data)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


async def test_a_service_that_is_broken_at_once_is_rolled_back_too(tmp_path: Path) -> None:
    """The bad version waits for the first one, which is deployed without a canary."""
    data = tmp_path / "data"
    async with start_quickstart(data) as quickstart:
        first = quickstart.head()
        await break_service(data)
        good = await quickstart.wait_for_completed(first, "web")
        assert DeploymentStatus(good.status) is DeploymentStatus.SUCCESS
        broken = await quickstart.wait_for_completed(quickstart.head(), "web")
        assert DeploymentStatus(broken.status) is DeploymentStatus.FAILURE
        names = {stage.name: stage.status for stage in broken.stages}
        assert StageStatus(names["PROCESS_ROLLBACK"]) is StageStatus.SUCCESS


async def test_a_directory_of_an_earlier_version_is_not_promised_a_web_service(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    await create_repository(data / "sample", service_port=1, status_port=2)
    git = [
        "git",
        "-C",
        str(data / "sample"),
        "-c",
        "user.name=dev",
        "-c",
        "user.email=dev@localhost",
    ]
    for command in (["rm", "-r", "--quiet", "web"], ["commit", "--quiet", "--amend", "--no-edit"]):
        await asyncio.to_thread(subprocess.run, [*git, *command], check=True)
    async with start_quickstart(data) as quickstart:
        deployment = await quickstart.wait_for_completed(quickstart.head())
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        await quickstart.stop(signal.SIGINT)
    assert "whose repository has no web service" in quickstart.output
    assert "--break" not in quickstart.output
    assert "requests meanwhile" not in quickstart.output


async def test_a_second_quickstart_in_the_directory_is_refused(tmp_path: Path) -> None:
    async with start_quickstart(tmp_path / "data"):
        error = failure("--data-dir", str(tmp_path / "data"), "--port", "0")
    assert "another quickstart (process " in error
    assert "--data-dir" in error


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        error = failure("--data-dir", str(tmp_path / "data"), "--port", port)
    assert f"port {port} is in use" in error
    assert "--port" in error


def test_a_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = failure("--data-dir", str(tmp_path / "file" / "data"), "--port", "0")
    assert "cannot write to" in error
    assert "--data-dir" in error


def test_a_damaged_database_is_reported_and_not_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "pipecd.db").write_bytes(b"not a database" * 100)
    assert "pipecd.db" in failure("--data-dir", str(data), "--port", "0")
    assert (data / "pipecd.db").read_bytes() == b"not a database" * 100


def failure(*arguments: str) -> str:
    """The error message of a quickstart that cannot start."""
    done = subprocess.run(
        [OUR_PIPECD, "quickstart", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


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
