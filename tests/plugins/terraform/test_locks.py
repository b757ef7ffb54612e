# SPDX-License-Identifier: Apache-2.0
"""States that are locked: by others, or by an apply of ours that was killed."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pipecd.plugins.terraform.apply_process import ApplyProcess
from pipecd.plugins.terraform.state_lock import StateLock, UnfinishedApply
from pipecd.sdk import StageStatus
from plugins.terraform.testbed import (
    KILLED,
    PIPELINE,
    Application,
    data,
    has_begun,
    kill_terraform,
)
from servers.terraform_states import TerraformStates

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
REMOVED = "The state is locked by an apply that was killed; its lock is removed"
FOREIGN = {
    "ID": "4cd0ae13",
    "Operation": "OperationTypeApply",
    "Who": "ann@laptop",
    "Version": "1.5.7",
    "Created": "2026-11-16T13:00:00.5Z",
}


async def killed_apply(application: Application, states: TerraformStates) -> Application:
    """Kills an apply that holds the lock."""
    application.backend = states.backend
    application.stages = PIPELINE
    text = KILLED.replace("FLAG", str(application.directory / "flag"))
    bench = application.commit("one", text)
    assert (await bench.run("TERRAFORM_PLAN")).status is SUCCESS
    applying = asyncio.ensure_future(bench.run("TERRAFORM_APPLY", index=2))
    await application.host.until(lambda: has_begun(application))
    kill_terraform(bench.directory)
    assert (await applying).message.startswith("tofu apply was ended by signal 9; ")
    assert states.lock
    return application


async def test_the_lock_of_a_killed_apply_is_removed(
    tofu_application: Application, terraform_states: TerraformStates
) -> None:
    application = await killed_apply(tofu_application, terraform_states)
    text = KILLED.replace("FLAG", str(application.directory / "flag"))
    continued = await application.commit("one", text).run("TERRAFORM_APPLY", index=2)
    assert continued.status is SUCCESS, continued.message
    assert REMOVED in application.host.lines
    assert terraform_states.inputs == {"first": "v1", "slow": "v1"}
    assert terraform_states.lock is None


@asynccontextmanager
async def foreign_apply(application: Application) -> AsyncIterator[int]:
    """An apply of another state, run by the same user; yields its process."""
    directory = application.directory / "foreign"
    directory.mkdir()
    (directory / "main.tf").write_text(KILLED.replace("FLAG", str(directory / "flag")))
    for arguments in (["init"], ["apply", "-auto-approve"]):
        process = await asyncio.create_subprocess_exec(
            "tofu",
            *arguments,
            cwd=directory,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        if arguments == ["init"]:
            assert await process.wait() == 0
    while not (directory / "flag").exists():
        assert process.returncode is None
        await asyncio.sleep(0.05)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_an_apply_that_began_later_is_not_its_holder(
    tofu_application: Application, terraform_states: TerraformStates
) -> None:
    application = await killed_apply(tofu_application, terraform_states)
    assert terraform_states.lock
    # Terraform and the kernel do not tell the same time to the second.
    terraform_states.lock["Created"] = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    backdate_record(application)
    text = KILLED.replace("FLAG", str(application.directory / "flag"))
    async with foreign_apply(application):
        continued = await application.commit("one", text).run("TERRAFORM_APPLY", index=2)
    assert continued.status is SUCCESS, continued.message
    assert REMOVED in application.host.lines


async def test_an_apply_that_may_be_its_holder_is_waited_for(
    tofu_application: Application, terraform_states: TerraformStates
) -> None:
    application, host = tofu_application, tofu_application.host
    async with foreign_apply(application) as pid:
        await killed_apply(application, terraform_states)
        text = KILLED.replace("FLAG", str(application.directory / "flag"))
        bench = application.commit("one", text)
        running = asyncio.ensure_future(bench.run("TERRAFORM_APPLY", index=2))
        await host.until(lambda: any(is_waiting(line, pid) for line in host.lines))
        assert REMOVED not in host.lines
        assert not running.done()
    continued = await running
    assert continued.status is SUCCESS, continued.message
    assert REMOVED in host.lines


def is_waiting(line: str, pid: int) -> bool:
    return "may have locked the state still runs" in line and str(pid) in line


def backdate_record(application: Application) -> None:
    """Makes the record of the killed apply older."""
    directory = application.host.private_directory("terraform") / "applying"
    (file,) = directory.glob("*.json")
    record = json.loads(file.read_text())
    record["started"] = (datetime.now(UTC) - timedelta(seconds=60)).isoformat()
    file.write_text(json.dumps(record))


async def test_the_rollback_removes_it_as_well(
    tofu_application: Application, terraform_states: TerraformStates
) -> None:
    application = await killed_apply(tofu_application, terraform_states)
    bench = application.commit("two", data(other="v1"))
    bench.running = application.commit("before", data(first="v0"))
    rolled_back = await bench.run("TERRAFORM_ROLLBACK", is_rollback=True)
    assert rolled_back.status is SUCCESS, rolled_back.message
    assert REMOVED in application.host.lines
    assert terraform_states.inputs == {"first": "v0"}


async def test_the_lock_of_somebody_else_stays(
    tofu_application: Application, terraform_states: TerraformStates
) -> None:
    application = await killed_apply(tofu_application, terraform_states)
    terraform_states.lock = FOREIGN
    application.stages = ()
    refused = await application.commit("two", data(web="v1")).run("TERRAFORM_APPLY")
    assert refused.status is FAILURE
    assert refused.message == (
        "the state is locked by ann@laptop for apply since 2026-11-16 13:00:00.5 +0000 UTC; wait "
        "until that has ended and deploy again, or run `tofu force-unlock 4cd0ae13` if it runs no "
        "more"
    )
    assert terraform_states.lock == FOREIGN


async def test_a_backend_that_does_not_tell_who_holds_the_lock(
    application: Application, terraform_states: TerraformStates
) -> None:
    application.backend = terraform_states.backend
    terraform_states.lock = FOREIGN
    refused = await application.commit("one", data(web="v1")).run("TERRAFORM_APPLY")
    assert refused.message == (
        "the state is locked by somebody; wait until that has ended and deploy again, or run "
        "`terraform force-unlock 4cd0ae13` if it runs no more"
    )


KILLED_APPLY = UnfinishedApply(
    "piped@host",
    datetime(2026, 11, 16, 13, 0, 0, tzinfo=UTC),
    datetime(2026, 11, 16, 13, 5, 0, tzinfo=UTC),
)
OWN = StateLock("1", "piped@host", "OperationTypeApply", "2026-11-16 13:00:01.123456789 +0000 UTC")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param({}, True, id="its own"),
        pytest.param({"created": "2026-11-16 13:00:00 +0000 UTC"}, True, id="at its start"),
        pytest.param({"who": "ann@host"}, False, id="of another user"),
        pytest.param({"who": "piped@other"}, False, id="of another machine"),
        pytest.param({"operation": "OperationTypePlan"}, False, id="of a plan"),
        pytest.param({"created": "2026-11-16 12:59:59.9 +0000 UTC"}, False, id="of an earlier one"),
        pytest.param({"created": "2026-11-16 13:05:00.1 +0000 UTC"}, False, id="of a later one"),
        pytest.param({"created": ""}, False, id="of an unknown time"),
        pytest.param({"id": ""}, False, id="without an id"),
    ],
)
def test_only_a_lock_that_is_certainly_our_own_is_removed(
    changed: dict[str, str], expected: bool
) -> None:
    assert KILLED_APPLY.holds(replace(OWN, **changed)) is expected


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        pytest.param("2026-11-16T12:00:00+00:00", True, id="one that ran before"),
        pytest.param("2026-11-16T13:00:02+00:00", True, id="one of about the same time"),
        pytest.param("2026-11-16T13:00:10+00:00", False, id="one that began later"),
    ],
)
def test_a_process_that_may_have_taken_the_lock(started: str, expected: bool) -> None:
    process = ApplyProcess(7, datetime.fromisoformat(started), "")
    assert OWN.possible_holders([process]) == ((process,) if expected else ())
