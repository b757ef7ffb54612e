# SPDX-License-Identifier: Apache-2.0
"""Commands: sending, listing and reporting results."""

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.command import CommandStatus
from pipecd.model.errors import Denied, NotFound


@pytest.fixture
async def command_id(cases: UseCases, piped: PipedCaller, admin: User) -> str:
    return await cases.pipeds.restart(piped.piped, by=admin)


async def test_a_command_is_unhandled_until_its_piped_reports_the_result(
    cases: UseCases, stores: Stores, command_id: str, piped: PipedCaller, admin: User
) -> None:
    assert [c.id for c in await cases.commands.list_unhandled(by=piped)] == [command_id]
    report = CommandResult(command_id, CommandStatus.SUCCEEDED, 5, {"k": "v"}, b"output")
    await cases.commands.report_handled(report, by=piped)
    assert await cases.commands.list_unhandled(by=piped) == ()
    command = await cases.commands.get(command_id, by=admin)
    assert (command.status, command.handled_at) == (CommandStatus.SUCCEEDED, 5)
    assert dict(command.metadata) == {"k": "v"}
    assert await stores.files.get(f"command-output/{command_id}.json") == b"output"


async def test_a_piped_cannot_report_the_result_of_another_pipeds_command(
    cases: UseCases, stores: Stores, command_id: str, other_piped: PipedCaller
) -> None:
    report = CommandResult(command_id, CommandStatus.SUCCEEDED, 5, output=b"lies")
    with pytest.raises(Denied, match="The current piped does not have requested command"):
        await cases.commands.report_handled(report, by=other_piped)
    with pytest.raises(NotFound):
        await stores.files.get(f"command-output/{command_id}.json")


async def test_a_command_of_another_project_cannot_be_read(
    cases: UseCases, command_id: str, stranger: User
) -> None:
    with pytest.raises(ForeignProject):
        await cases.commands.get(command_id, by=stranger)


async def test_reading_a_command_needs_a_role_of_the_project(
    cases: UseCases, command_id: str, viewer: User
) -> None:
    await cases.commands.get(command_id, by=viewer)
    with pytest.raises(Denied, match="Permission Denied"):
        await cases.commands.get(command_id, by=User("shop", "x", ("Nobody",)))


async def test_an_unknown_command_is_not_found(cases: UseCases, admin: User) -> None:
    with pytest.raises(NotFound, match=r"^Command is not found$"):
        await cases.commands.get("nope", by=admin)
