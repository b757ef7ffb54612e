# SPDX-License-Identifier: Apache-2.0
"""States that are locked: by others, or by an apply of ours that was killed."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipecd.plugins.terraform.applying import StateLock, UnfinishedApply
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
    assert (await applying).message == "tofu apply was ended by signal 9"
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
        "until that has ended and deploy again, or run `force-unlock 4cd0ae13` if it runs no more"
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
        "`force-unlock 4cd0ae13` if it runs no more"
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
